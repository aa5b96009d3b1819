// The type of a dashboard file, from Grafana's schema: enum members have their JSON values, and each kind of panel has its own options.
// TypeScript also rejects unknown properties in object literals.
import type { AnnotationQuery, Dashboard, DataSourceRef, FieldConfig, Panel, VariableModel } from "@grafana/schema";
import type { FieldConfig as StateTimelineField, Options as StateTimelineOptions } from "@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type { Options as StatOptions } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type { FieldConfig as TableField, Options as TableOptions } from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type { FieldConfig as TimeSeriesField, Options as TimeSeriesOptions } from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type AsNumber<T extends string> = T extends `${infer N extends number}` ? N : never;

/** Json is the JSON form of a type. */
type Json<T> = 0 extends 1 & T
  ? T // any
  : T extends string
    ? `${T}`
    : T extends number
      ? AsNumber<`${T}`>
      : T extends readonly (infer E)[]
        ? Json<E>[]
        : T extends object
          ? { [K in keyof T]: Json<T[K]> }
          : T;

/** Query is a query of Prometheus; the schema package lacks its type. */
interface Query {
  datasource: DataSourceRef;
  refId: string;
  expr: string;
  legendFormat?: string;
  format?: "table" | "time_series" | "heatmap";
  instant?: boolean;
  range?: boolean;
}

/** Annotation is an annotation of Prometheus, with options of the data source. */
interface Annotation extends Known<AnnotationQuery<Query>> {
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
  useValueForTime: "on";
}

/** Known removes the index signature of a type, so that unknown properties are rejected. */
type Known<T> = { [K in keyof T as string extends K ? never : K]: T[K] };

interface Kind<Type extends string, Options, Custom> extends Omit<Known<Panel>, "type" | "options" | "fieldConfig" | "targets"> {
  type: Type;
  options: Options;
  targets: Query[];
  fieldConfig: {
    defaults: Omit<Known<FieldConfig>, "custom"> & { custom?: Partial<Custom> };
    overrides: NonNullable<Panel["fieldConfig"]>["overrides"];
  };
}

type Row = { type: "row"; id: number; title: string; collapsed: boolean; gridPos: Panel["gridPos"]; panels: [] };

export type Board = Json<
  Omit<Known<Dashboard>, "panels" | "templating" | "annotations"> & {
    templating: { list: Known<VariableModel>[] };
    annotations: { list: Annotation[] };
    panels: (
      | Row
      | Kind<"stat", StatOptions, Record<string, never>>
      | Kind<"table", TableOptions, TableField>
      | Kind<"timeseries", TimeSeriesOptions, TimeSeriesField>
      | Kind<"state-timeline", StateTimelineOptions, StateTimelineField>
    )[];
  }
>;
