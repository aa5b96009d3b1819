// Renders tables of Prometheus' results with Grafana's transformations. Reads
// [{where, transformations, answers: [{refId, series: [{labels, value}]}]}] and writes
// [{where, fields: [{name, values}]}].
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

// The package's ES modules require a bundler.
const { FieldType, standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame } = createRequire(import.meta.url)("@grafana/data");

globalThis.window = {}; // read by the package

const known = [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer];
standardTransformersRegistry.setInit(() =>
  known.map((t) => ({ id: t.id, name: t.name, transformation: async () => t })),
);

// frame returns a result as Grafana's data frame for a table: a row for each series. With several queries, the value's name includes
// the query's id.
function frame({ refId, series }, several) {
  const names = [...new Set(series.flatMap((s) => Object.keys(s.labels)))].sort();
  return toDataFrame({
    refId,
    fields: [
      { name: "Time", type: FieldType.time, values: series.map(() => 0) },
      ...names.map((name) => ({ name, type: FieldType.string, values: series.map((s) => s.labels[name] ?? "") })),
      { name: several ? `Value #${refId}` : "Value", type: FieldType.number, values: series.map((s) => s.value) },
    ],
  });
}

async function renderTable({ where, transformations, answers }) {
  for (const t of transformations) {
    if (!known.some((k) => k.id === t.id)) {
      throw new Error(`${where}: unknown transformation ${t.id}`);
    }
  }
  const frames = answers.map((a) => frame(a, answers.length > 1));
  const tables = await new Promise((resolve, reject) =>
    transformDataFrame(transformations, frames).subscribe({ next: resolve, error: reject }),
  );
  if (tables.length !== 1) {
    throw new Error(`${where}: got ${tables.length} tables, want 1`);
  }
  const fields = tables[0].fields.map((f) => ({ name: f.config?.displayName ?? f.name, values: [...f.values].map((v) => v ?? null) }));
  return { where, fields };
}

const tables = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await Promise.all(tables.map(renderTable))));
