// Draws panels of a dashboard with Grafana's components, except state timelines, which Grafana's packages lack.
// globalThis.board has the panels with Prometheus' results.
import {
  FieldConfigOptionsRegistry, FieldType, LoadingState, VizOrientation, applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, getFieldDisplayName, getFieldDisplayValues,
  standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame,
} from "@grafana/data";
import { BigValue, GlobalStyles, PanelChrome, ThemeContext, TimeSeries, VizRepeater } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import { createRoot } from "react-dom/client";

const { title, variables, panels, begin, end } = globalThis.board;
const note = "Drawn from the dashboard's JSON and the results of a real Prometheus, not by a Grafana server. "
  + "The panels are components of Grafana's npm packages, except state timelines. The GPUs are simulated.";
const theme = createTheme({ colors: { mode: "dark" } });
const timeRange = { from: dateTime(begin), to: dateTime(end), raw: { from: dateTime(begin), to: dateTime(end) } };
const cell = 30, gap = 8, width = 1600, edge = 16, column = (width - 2 * edge + gap) / 24;

standardTransformersRegistry.setInit(() => [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer]
  .map((t) => ({ id: t.id, name: t.name, transformation: async () => t })));

const registry = new FieldConfigOptionsRegistry(() => [
  ...["unit", "min", "max", "noValue", "color", "thresholds", "mappings"].map((id) => [id, id, false]),
  ...["align", "cellOptions", "drawStyle", "fillOpacity", "lineWidth", "showPoints", "spanNulls", "stacking", "thresholdsStyle"].map((path) => [`custom.${path}`, path, true]),
].map(([id, path, isCustom]) => ({ id, path, isCustom, name: id, process: (value) => value, shouldApply: () => true, editor: () => null, override: () => null, settings: {} })));

const legend = (format, labels) => format?.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "");

// frames returns a query result as Grafana's Prometheus data source does: a frame for each line, or a frame for a table.
function frames({ target, result, step }, several) {
  if (target.format === "table") {
    const names = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].sort();
    return [toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: FieldType.time, values: result.map((series) => series.value[0] * 1000) },
      ...names.map((name) => ({ name, type: FieldType.string, values: result.map((series) => series.metric[name] ?? "") })),
      { name: several ? `Value #${target.refId}` : "Value", type: FieldType.number, values: result.map((series) => Number(series.value[1])) },
    ] })];
  }
  return result.map((series) => {
    const points = new Map(series.values ?? [series.value]), start = Math.floor(begin / 1000 / step) * step;
    const times = series.value ? [series.value[0]] : Array.from({ length: Math.floor((end / 1000 - start) / step) + 1 }, (_, i) => start + i * step); // missing values are null
    const displayNameFromDS = legend(target.legendFormat, series.metric);
    return toDataFrame({ refId: target.refId, name: displayNameFromDS, fields: [
      { name: "Time", type: FieldType.time, values: times.map((at) => at * 1000) },
      { name: "Value", type: FieldType.number, labels: series.metric, config: { displayNameFromDS }, values: times.map((at) => points.has(at) ? Number(points.get(at)) : null) },
    ] });
  });
}

async function prepare(panel) {
  const raw = panel.results.flatMap((result) => frames(result, panel.results.length > 1));
  const data = panel.transformations?.length
    ? await new Promise((next, error) => { transformDataFrame(panel.transformations, raw).subscribe({ next, error }); }) : raw;
  if (panel.type === "timeseries") panel.fieldConfig.defaults.color ??= { mode: "palette-classic" }; // the default of this panel
  const prepared = applyFieldOverrides({
    data, theme, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry, timeZone: "utc", replaceVariables: (text) => text,
  });
  cacheFieldDisplayNames(prepared);
  return prepared;
}

const size = (frame) => frame.fields.length && frame.length;
const empty = (panel) => <div style={{ display: "grid", placeItems: "center", height: "100%", color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</div>;

function Stat({ panel: { options, fieldConfig }, data, width, height }) {
  const values = getFieldDisplayValues({ fieldConfig, reduceOptions: options.reduceOptions, replaceVariables: (text) => text, theme, data, timeZone: "utc" });
  return <VizRepeater source={values} getValues={() => values} width={width} height={height} orientation={VizOrientation.Auto} renderCounter={1}
    renderValue={({ value, width, height, count }) => <BigValue value={value.display} count={count} width={width} height={height} theme={theme}
      colorMode={options.colorMode} graphMode={options.graphMode} justifyMode={options.justifyMode} textMode={options.textMode} wideLayout={options.wideLayout} />} />;
}

function Lines({ panel, data, width, height }) {
  return <div data-needs="canvas"><TimeSeries frames={data} timeRange={timeRange} timeZone="utc" width={width} height={height} legend={panel.options.legend} options={panel.options} structureRev={1} /></div>;
}

// Timeline merges consecutive equal values, as Grafana does.
function Timeline({ data, width, height }) {
  const rows = data.map((frame) => {
    const [time, value] = frame.fields, step = Math.min(...time.values.slice(1).map((at, i) => at - time.values[i]), end - begin), spans = [];
    value.values.forEach((v, i) => {
      if (v === null) return;
      const at = time.values[i], last = spans[spans.length - 1], to = Math.min(at + step, end), from = Math.max(at, begin);
      if (last?.value === v && from <= last.to) last.to = to;
      else spans.push({ value: v, from, to });
    });
    return { name: getFieldDisplayName(value, frame, data), spans, display: value.display };
  });
  const shown = rows.slice(0, Math.floor((height - 24) / 16)), each = (height - 24) / shown.length, names = Math.min(0.32 * width, 16 + 6.9 * Math.max(...rows.map(({ name }) => name.length)));
  const x = (at) => ((at - begin) / (end - begin)) * (width - names);
  const ticks = Array.from({ length: 9 }, (_, i) => begin + ((i + 0.5) * (end - begin)) / 9);
  return <div style={{ position: "relative", width, height, fontSize: 12 }}>
    {shown.map((row, i) => <div key={row.name} style={{ position: "absolute", top: i * each, height: each, width }}>
      <span style={{ position: "absolute", width: names - 10, lineHeight: `${each}px`, textAlign: "right", overflow: "hidden", whiteSpace: "nowrap", textOverflow: "ellipsis", color: theme.colors.text.primary }}>{row.name}</span>
      {row.spans.map((span) => {
        const { text, color } = row.display(span.value), space = x(span.to) - x(span.from);
        return <span key={span.from} style={{ position: "absolute", left: names + x(span.from), width: space, top: each * 0.08, height: each * 0.84, lineHeight: `${each * 0.84}px`, background: color, opacity: 0.8, color: theme.colors.getContrastText(color), overflow: "hidden", whiteSpace: "nowrap", paddingLeft: 4, boxSizing: "border-box" }}>{space > 40 && text}</span>;
      })}
    </div>)}
    {ticks.map((at) => <span key={at} style={{ position: "absolute", left: names + x(at), bottom: 0, transform: "translateX(-50%)", color: theme.colors.text.secondary }}>{new Date(at).toISOString().slice(11, 16)}</span>)}
  </div>;
}

function Rows({ panel, data, width, height }) {
  return <div data-needs="[role=gridcell]"><TableNG data={data[0]} width={width} height={height} timeRange={timeRange} cellHeight={panel.options.cellHeight} enableVirtualization={false} disableKeyboardEvents /></div>;
}

const kinds = { stat: Stat, timeseries: Lines, "state-timeline": Timeline, table: Rows };

function Panel({ panel, data }) {
  const { x, y, w, h } = panel.gridPos;
  const box = { position: "absolute", left: edge + x * column, top: y * (cell + gap), width: w * column - gap, height: h * (cell + gap) - gap };
  if (panel.type === "row") return <h4 style={{ ...box, margin: 0, paddingTop: 4 }}>⌄ {panel.title}</h4>;
  const Kind = kinds[panel.type];
  return <div style={box}><PanelChrome title={panel.title} width={box.width} height={box.height} loadingState={LoadingState.Done}>
    {(width, height) => !Kind ? <>{panel.type} is not drawn</> : panel.type !== "stat" && !data.some(size) ? empty(panel) : <Kind {...{ panel, data, width, height }} />}
  </PanelChrome></div>;
}

const prepared = await Promise.all(panels.map(prepare));
const bottom = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * (cell + gap);
createRoot(document.getElementById("root")).render(<ThemeContext.Provider value={theme}>
  <GlobalStyles />
  <div style={{ width, height: bottom + 92, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
    <div style={{ display: "flex", gap: 16, alignItems: "center", padding: `0 ${edge}px`, height: 56 }}>
      <strong style={{ fontSize: 18 }}>{title}</strong>
      {variables.map(([label, value]) => <span key={label} style={{ border: `1px solid ${theme.colors.border.medium}`, borderRadius: 6, padding: "4px 10px" }}>{label}: {value}</span>)}
    </div>
    <div style={{ position: "relative", height: bottom }}>{panels.map((panel, i) => <Panel key={panel.id} panel={panel} data={prepared[i]} />)}</div>
    <div style={{ padding: `4px ${edge}px`, color: theme.colors.text.secondary }}>{note}</div>
  </div>
</ThemeContext.Provider>);
