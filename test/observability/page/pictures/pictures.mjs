// Draws the page, the commands and the dashboards of four simulated nodes and a real Prometheus for docs/img. It takes twenty minutes.
import { execFile } from "node:child_process";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { build } from "esbuild";
import { close, launch, open, save } from "../browser.mjs";
import { start } from "./cluster.mjs";
import { read } from "./dashboards.mjs";

const here = dirname(fileURLToPath(import.meta.url)), root = join(here, "../../../..");
const minute = 60 * 1000;
const require = createRequire(import.meta.url);

// boards are the dashboards with their selected variables and rows of the grid (from, to).
const boards = {
  fleet: [{}, [0, 34], [50, 75], [91, 100]], workload: [{ namespace: "training" }, [0, 43], [60, 77]], device: [{ node: "gpu-node-1" }, [0, 65], [135, 148]],
  reliability: [{}, [0, 42]], podgauge: [{}, [0, 30], [55, 72]],
};

const file = (name) => join(root, "docs/img", `${name}.png`);
const drawn = async (page) => (await page.$("#root")).boundingBox();

// terminal draws commands with their output.
async function terminal(browser, name, commands) {
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const texts = await Promise.all(commands.map(async ([shown, program, ...args]) => {
    const { stdout } = await promisify(execFile)(join(root, "bin", program), args); // not execFileSync: this process is the API server
    return `<b>$ ${escape(shown)}</b>\n${escape(stdout)}`;
  }));
  const page = await browser.newPage();
  await page.setContent(`<style>body { margin: 0 } #root { display: inline-block; padding: 14px 18px; background: #111217; color: #d5d7dd; font: 13px/1.45 monospace }
    pre { margin: 0; font: inherit } b { color: #7ee787; font-weight: normal }</style><div id="root"><pre>${texts.join("\n").trimEnd()}</pre></div>`);
  await save(page, file(name), await drawn(page));
  await page.close();
}

// status draws a node's page, with a GPU in a state.
async function status(browser, url, state, sizes) {
  for (const scheme of ["light", "dark"]) {
    for (const [size, name] of Object.entries(sizes)) {
      const page = await open(browser, url, { size, scheme });
      await page.waitForSelector(`.gpu[data-health=${state}]`);
      await save(page, file(`page-${name}-${scheme}`));
      await close(page);
    }
  }
}

// bundle returns the files of the page that draws a dashboard, by path.
async function bundle() {
  const { outputFiles } = await build({
    entryPoints: [join(here, "board.jsx")], bundle: true, minify: true, write: false, outdir: "/", format: "esm", jsx: "automatic", logLevel: "error",
    define: { "process.env.NODE_ENV": '"production"', global: "globalThis" }, loader: { ".woff": "empty", ".woff2": "empty", ".svg": "empty", ".ttf": "empty" },
  });
  const font = (weight) => readFileSync(require.resolve(`@fontsource/inter/files/inter-latin-${weight}-normal.woff2`));
  return {
    "/": ["text/html", '<!DOCTYPE html><meta charset="utf-8"><link rel="stylesheet" href="/board.css"><style>body { margin: 0 }</style><div id="root" style="width: 1600px"></div>'],
    ...Object.fromEntries(outputFiles.map(({ path, contents }) => [path, [path.endsWith("css") ? "text/css" : "text/javascript", Buffer.from(contents)]])),
    "/public/fonts/inter/Inter-Regular.woff2": ["font/woff2", font(400)], "/public/fonts/inter/Inter-Medium.woff2": ["font/woff2", font(500)],
  };
}

async function dashboard(browser, files, name, board) {
  const page = await browser.newPage(), faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("request", (request) => {
    const [contentType, body] = files[new URL(request.url()).pathname] ?? [];
    return body ? request.respond({ contentType, body }) : request.respond({ status: 404 });
  });
  await page.setRequestInterception(true);
  await page.setViewport({ width: 1600, height: 4000 }); // tables outside the window are not rendered
  await page.goto("http://dashboards.test/");
  await page.evaluate((board) => { globalThis.board = board; }, board);
  await page.addScriptTag({ url: "/board.js", type: "module" });
  await page.waitForSelector("#root section");
  await page.waitForFunction(() => [...document.querySelectorAll("[data-needs]")].every((panel) => panel.querySelector(panel.dataset.needs)), { polling: 200 });
  await page.waitForNetworkIdle({ idleTime: 2000 });
  if (faults.length) throw new Error(`${name}: ${faults.join("; ")}`);
  await save(page, file(`dashboard-${name}`), await drawn(page));
  await page.close();
}

const files = await bundle();
const cluster = await start(root);
let browser;
try {
  const until = (time) => new Promise((resolve) => setTimeout(resolve, cluster.begun + time - Date.now()));
  browser = await launch();
  const node = `http://${cluster.nodes["gpu-node-1"]}/`, url = `--url=${node}`, server = `--server=${cluster.api}`;
  await until(16 * minute);
  await status(browser, node, "healthy", { desktop: "desktop", phone: "phone" });
  await until(20 * minute);
  await status(browser, node, "unhealthy", { desktop: "failed" });
  await terminal(browser, "cli-status", [["podgauge status", "podgauge", "status", url]]);
  await terminal(browser, "cli-incidents", [["podgauge incidents", "podgauge", "incidents", url]]);
  await terminal(browser, "cli-kubectl", [
    ["kubectl podgauge nodes", "kubectl-podgauge", "nodes", server], ["kubectl podgauge pod llm-0 -n serving", "kubectl-podgauge", "pod", "llm-0", "-n", "serving", server],
  ]);
  const end = Date.now();
  for (const [name, [chosen, ...shown]] of Object.entries(boards)) {
    await dashboard(browser, files, name, await read(join(root, "dashboards", `${name}.json`), cluster.prometheus, cluster.begun + 2 * minute, end, chosen, shown));
  }
} finally {
  await browser?.close();
  await cluster.stop();
}
