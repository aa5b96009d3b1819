// Serves the golden pages with podgauge's headers, style and script.
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

const kinds = { css: "text/css", js: "text/javascript", svg: "image/svg+xml" };

// serve returns the address, the names of the pages, and a function that stops the server. The headers are those of podgauge's page.
export async function serve(root, headers) {
  const pages = join(root, "internal/web/status/testdata");
  const server = createServer((request, response) => {
    const [, asset, kind] = /^\/static\/((?:page|icon)\.(css|js|svg))$/.exec(request.url) ?? [];
    const [, page] = /^\/(\w+)$/.exec(request.url) ?? [];
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    try {
      response.setHeader("Content-Type", (kinds[kind] ?? "text/html") + "; charset=utf-8");
      response.end(readFileSync(asset ? join(root, "internal/web/status", asset) : join(pages, page + ".html")));
    } catch {
      response.statusCode = 404;
      response.end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    names: readdirSync(pages).map((file) => file.replace(".html", "")).sort(),
    stop: () => new Promise((resolve) => {
      server.close(resolve);
      server.closeAllConnections();
    }),
  };
}
