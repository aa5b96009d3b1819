// A real Chromium, and what is asked of a page in it.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import puppeteer from "puppeteer-core";
import sharp from "sharp";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const sizes = {
  wide: { width: 1920, height: 1080 },
  desktop: { width: 1280, height: 800 },
  phone: { width: 390, height: 844, isMobile: true, hasTouch: true },
  narrow: { width: 360, height: 640, isMobile: true, hasTouch: true },
};

export function launch() {
  const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => path && existsSync(path));
  return puppeteer.launch({
    executablePath, acceptInsecureCerts: true, // the certificate is made for the check
    args: process.getuid() === 0 ? ["--no-sandbox"] : [], // Chromium's sandbox wants another user than root
  });
}

// open opens an address in a window of its own. What a page does wrong by itself is in faults: what
// the console complains of, errors, requests that fail, and requests to anybody else.
export async function open(browser, url, { size, scheme, script = true, user }) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.faults = [];
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && page.faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => page.faults.push(`error: ${error.message}`));
  page.on("requestfailed", (request) => {
    const why = request.failure()?.errorText ?? "";
    if (why !== "net::ERR_ABORTED") page.faults.push(`failed: ${request.url()} ${why}`); // that one is of a page that is left
  });
  page.on("request", (request) => new URL(request.url()).origin !== new URL(url).origin && page.faults.push(`elsewhere: ${request.url()}`));
  page.on("response", (response) => {
    if (response.status() >= 400) page.faults.push(`${response.status()}: ${response.url()}`);
  });
  await page.setViewport({ deviceScaleFactor: 1, ...sizes[size] });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setJavaScriptEnabled(script);
  if (user) await page.authenticate(user);
  page.answer = await page.goto(url, { waitUntil: "load" });
  return page;
}

// save writes a small picture of the window, or of a part of the page.
export async function save(page, file, clip) {
  const picture = await page.screenshot({ clip, captureBeyondViewport: Boolean(clip) });
  writeFileSync(file, await sharp(picture).png({ palette: true, colours: 128, dither: 0, compressionLevel: 9, effort: 10 }).toBuffer());
}

export async function close(page) {
  await page.browserContext().close();
}

// violations are what axe-core finds to be serious or critical, and lesser is what else it finds.
export async function violations(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const said = (v) => `${v.impact}: ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")}`;
  const grave = (v) => ["serious", "critical"].includes(v.impact);
  return { grave: violations.filter(grave).map(said), lesser: violations.filter((v) => !grave(v)).map(said) };
}

// overflow tells by how many pixels the page is wider than its window.
export function overflow(page) {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

// byKeyboard says what is wrong for who has no mouse: Tab has to reach all that can be
// followed or opened, visibly, and first the link that skips what stands before the devices.
export async function byKeyboard(page) {
  const wrong = [];
  const name = () => page.evaluate(() => {
    const at = document.activeElement;
    if (at === document.body) return null;
    const style = getComputedStyle(at), box = at.getBoundingClientRect();
    globalThis.reached ??= new Set();
    globalThis.reached.add(at);
    return { text: at.textContent.trim(), href: at.getAttribute("href"), shown: style.outlineStyle !== "none" && box.width > 1 && box.bottom > 0 };
  });
  await page.evaluate(() => {
    document.activeElement.blur();
    globalThis.reachable = [...document.querySelectorAll("a[href]:not([tabindex='-1']), summary, input")]; // not what comes later
  });
  let first;
  for (let i = 0; i < 500; i++) {
    await page.keyboard.press("Tab");
    const at = await name();
    if (!at) break;
    first ??= at;
    if (!at.shown) wrong.push(`the focus on ${at.text} cannot be seen`);
  }
  if (first?.href !== "#devices") wrong.push(`Tab begins with ${JSON.stringify(first)}`);
  wrong.push(...await page.evaluate(() => globalThis.reachable
    .filter((e) => e.isConnected && !globalThis.reached.has(e)).map((e) => `Tab does not reach ${e.outerHTML.slice(0, 120)}`)));
  await page.focus(".skip");
  await page.keyboard.press("Enter");
  if (await page.evaluate(() => document.activeElement.id) !== "devices") wrong.push("the skip link leads nowhere");
  return wrong;
}
