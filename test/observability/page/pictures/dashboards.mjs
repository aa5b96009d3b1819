// Queries Prometheus for the data of a dashboard's panels, as Grafana does.
import { readFileSync } from "node:fs";

// read returns the panels in the selected rows of the grid, without gaps, with query results.
export async function read(file, prometheus, begin, end, chosen, shown) {
  const board = JSON.parse(readFileSync(file, "utf8"));
  const values = Object.fromEntries(board.templating.list.map(({ name, type, query, allValue }) => [name, chosen[name] ?? (type === "textbox" ? query : allValue ?? ".*")]));
  const query = async (path, parameters) => {
    const response = await fetch(`${prometheus}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const { data, error } = await response.json();
    if (error) throw new Error(`${file}: ${parameters.query}: ${error}`);
    return data.result;
  };
  const panels = board.panels.filter(({ gridPos: { y, h } }) => shown.some(([from, to]) => y >= from && y + h <= to));
  for (const { gridPos } of panels) gridPos.y -= shown.reduce((gap, [from], i) => gap + (from <= gridPos.y ? from - (shown[i - 1]?.[1] ?? 0) : 0), 0);
  for (const panel of panels) {
    const step = Math.max(10, panel.interval === "1h" ? 3600 : parseInt(panel.interval ?? "0", 10) * 60);
    const builtin = { __interval: `${step}s`, __rate_interval: `${Math.max(step + 10, 40)}s`, __range: `${Math.round((end - begin) / 1000)}s` };
    panel.results = await Promise.all((panel.targets ?? []).map(async (target) => {
      const expr = target.expr.replace(/\$(\w+)|\$\{(\w+)(?::[^}]*)?\}/g, (text, a, b) => values[a ?? b] ?? builtin[a ?? b] ?? text);
      const result = target.instant ? await query("query", { query: expr, time: end / 1000 })
        : await query("query_range", { query: expr, start: Math.floor(begin / 1000 / step) * step, end: end / 1000, step });
      return { target, result, step };
    }));
  }
  const variables = board.templating.list.filter(({ type, hide }) => type === "query" && !hide).map(({ name, label }) => [label ?? name, chosen[name] ?? "All"]);
  return { title: board.title, variables, panels, begin, end };
}
