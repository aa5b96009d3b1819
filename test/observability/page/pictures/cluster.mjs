// Four simulated nodes, a real Prometheus that scrapes them, and simulations of kube-state-metrics and the API server.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const names = ["gpu-node-1", "gpu-node-2", "gpu-node-3", "gpu-node-4"];
const phases = { pod: "Running", fail: "Failed", finish: "Succeeded", delete: "" }; // of a pod after an action of a script
const seconds = (text) => [...text.matchAll(/(\d+)([ms])/g)].reduce((sum, [, n, unit]) => sum + n * (unit === "m" ? 60 : 1), 0);

// loadRows are the values that follow the load of a GPU, with their values at load 0 and 1; T4s have the first two.
const loadRows = [
  ["nvidia_gpu_utilization_ratio", 0, 1], ["nvidia_gpu_memory_controller_utilization_ratio", 0, 0.5], ["nvidia_gpu_sm_active_ratio", 0, 0.9],
  ["nvidia_gpu_graphics_engine_active_ratio", 0, 1], ['nvidia_gpu_pipe_active_ratio{pipe="tensor"}', 0, 0.5],
  ["nvidia_gpu_dram_bandwidth_utilization_ratio", 0, 0.6], ["nvidia_gpu_power_watts", 70, 680], ['nvidia_gpu_temperature_celsius{sensor="gpu"}', 34, 74],
];

// expandLoads replaces the comments "# load" of a script by values at intervals of 20 seconds.
function expandLoads(text) {
  const rows = /^machine t4/m.test(text) ? loadRows.slice(0, 2) : loadRows, lines = text.split("\n");
  for (const [, device, from, to, level] of text.matchAll(/^# load (\S+) (\S+) (\S+) (\S+)$/gm)) {
    for (let at = seconds(from); at <= seconds(to); at += 20) {
      const load = at + 20 > seconds(to) && to !== "20m" ? 0 : Math.min(1, level * (1 + 0.06 * Math.sin(at / 37 + 2 * device) + 0.05 * Math.sin(at / 11 + 5 * device)));
      for (const [row, idle, full] of rows) lines.push(`${at}s set ${device} ${row} ${(idle + load * (full - idle)).toFixed(3)}`);
    }
  }
  const time = (line) => /^\d/.test(line) ? seconds(line.split(" ")[0]) : -1;
  return lines.sort((a, b) => time(a) - time(b)).join("\n");
}

// podPhases returns the metrics of kube-state-metrics for the scripts' pods, and for a pending pod that requests two GPUs.
function podPhases(scripts, age) {
  const pods = new Map();
  for (const line of scripts.flatMap((text) => text.split("\n"))) {
    const [at, action, pod] = line.trim().split(/\s+/);
    if (action in phases && seconds(at) <= age) pods.set(pod, phases[action]);
  }
  const lines = [...pods].filter(([, phase]) => phase).flatMap(([pod, phase]) => {
    const [namespace, name] = pod.split("/");
    return ["Pending", "Running", "Succeeded", "Failed", "Unknown"].map((each) =>
      `kube_pod_status_phase{namespace="${namespace}",pod="${name}",uid="uid-of-${name}",phase="${each}"} ${Number(phase === each)}`);
  });
  return [...lines, 'kube_pod_status_unschedulable{namespace="training",pod="llama-3"} 1',
    'kube_pod_container_resource_requests{namespace="training",pod="llama-3",container="trainer",resource="nvidia_com_gpu"} 2', ""].join("\n");
}

async function listen(handler) {
  const server = createServer(handler);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `127.0.0.1:${server.address().port}` };
}

async function freeAddress() {
  const { server, address } = await listen();
  await new Promise((resolve) => server.close(resolve));
  return address;
}

// apiServer lists podgauge's pods and proxies requests to them, as kubectl podgauge requires.
function apiServer(nodes) {
  return (from, to) => {
    const [, name, path] = /^\/api\/v1\/namespaces\/podgauge\/pods\/(?:\w+:)?podgauge-([\w-]+)(?::\d+)?\/proxy(\/.*)/.exec(from.url) ?? [];
    if (name) {
      const [host, port] = nodes[name].split(":");
      request({ host, port, path, headers: { accept: from.headers.accept ?? "*/*" } }, (response) => {
        to.writeHead(response.statusCode, response.headers);
        response.pipe(to);
      }).on("error", () => to.writeHead(502).end()).end();
      return;
    }
    const items = Object.keys(nodes).map((node) => ({
      metadata: { name: `podgauge-${node}`, namespace: "podgauge" }, spec: { nodeName: node, containers: [{ name: "podgauge" }] }, status: { phase: "Running" },
    }));
    to.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ kind: "PodList", apiVersion: "v1", metadata: {}, items }));
  };
}

// start starts all programs. stop ends them and removes their files.
export async function start(root) {
  const dir = mkdtempSync(join(tmpdir(), "podgauge-pictures-")), begun = Date.now(), children = [], servers = [], nodes = {};
  const run = (command, args, env = {}) => {
    const child = spawn(command, args, { stdio: "ignore", env: { ...process.env, ...env } });
    child.ended = new Promise((resolve) => child.once("exit", resolve).once("error", resolve));
    children.push(child);
  };
  const serve = async (handler) => {
    const { server, address } = await listen(handler);
    servers.push(server);
    return address;
  };
  const scripts = names.map((name) => readFileSync(join(root, "test/observability/page/pictures/nodes", `${name}.script`), "utf8")), shared = join(dir, "shared.yaml");
  writeFileSync(shared, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n");
  const flags = { "gpu-node-1": ["--mig-strategy=mixed"], "gpu-node-2": [`--config-file=${shared}`], "gpu-node-3": [], "gpu-node-4": ["--metrics.rdma"] };
  for (const [i, name] of names.entries()) {
    const script = join(dir, `${name}.script`);
    writeFileSync(script, expandLoads(scripts[i]));
    nodes[name] = await freeAddress();
    run(join(root, "bin/podgauge-sim"), [`--simulate=script:${script}`, `--web.listen-address=${nodes[name]}`, `--state-dir=${join(dir, name)}`, ...flags[name]], { NODE_NAME: name });
  }
  const kube = await serve((_, to) => to.writeHead(200, { "content-type": "text/plain; version=0.0.4" }).end(podPhases(scripts, (Date.now() - begun) / 1000)));
  const rules = ["rules", "recording", "jobs", "reliability", "cost"].map((name) => `${root}/deploy/rules/podgauge.${name}.yaml`);
  const target = (address, labels) => JSON.stringify({ targets: [address], labels });
  writeFileSync(join(dir, "prometheus.yml"), `
global: {scrape_interval: 10s, scrape_timeout: 10s, evaluation_interval: 1m}
rule_files: [${rules}]
scrape_configs:
- {job_name: podgauge, honor_labels: true, static_configs: [${names.map((node) => target(nodes[node], { node, cluster: "demo" }))}]}
- {job_name: kube-state-metrics, honor_labels: true, static_configs: [${target(kube, { cluster: "demo" })}]}
`);
  const prometheus = await freeAddress();
  run("prometheus", [`--config.file=${dir}/prometheus.yml`, `--storage.tsdb.path=${dir}/data`, `--web.listen-address=${prometheus}`, "--log.level=error"]);
  return {
    begun, nodes, prometheus: `http://${prometheus}`, api: `http://${await serve(apiServer(nodes))}`,
    stop: async () => {
      for (const child of children) child.kill("SIGTERM");
      await Promise.all(children.map((child) => child.ended));
      for (const server of servers) server.closeAllConnections(), server.close();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
