// The simulated node under test: podgauge with TLS and basic authentication.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const viewer = { username: "viewer", password: "let me look" };
const hash = "$2a$04$HnjdakovY8v48xqf8541LuGR1pZxV3YWPZH5DH3eHosM3dprvzbsW"; // bcrypt of the password with the minimum cost

// start runs podgauge and returns its address. failures has the times and devices of simulated GPU failures, from the log.
export async function start(binary) {
  const dir = mkdtempSync(join(tmpdir(), "podgauge-page-"));
  const key = join(dir, "key.pem"), cert = join(dir, "cert.pem"), config = join(dir, "web.yml");
  execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=localhost",
    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], { stdio: "ignore" });
  writeFileSync(config, `tls_server_config: {cert_file: ${cert}, key_file: ${key}}\nbasic_auth_users: {${viewer.username}: "${hash}"}\n`);
  const child = spawn(binary, ["--web.listen-address=127.0.0.1:0", `--web.config.file=${config}`, "--log.format=json"],
    { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, NODE_NAME: "gpu-node-7" } });
  const exited = new Promise((resolve) => child.once("exit", resolve));
  const node = {
    failures: [],
    stop: async () => {
      child.kill("SIGTERM");
      await exited;
      rmSync(dir, { recursive: true, force: true });
    },
  };
  const log = createInterface({ input: child.stderr });
  node.url = await new Promise((resolve, reject) => {
    const lines = [];
    exited.then(() => reject(new Error("podgauge exited:\n" + lines.join("\n"))));
    log.on("line", (line) => {
      lines.push(line);
      let entry;
      try {
        entry = JSON.parse(line);
      } catch {
        return; // not a log line
      }
      if (entry.listen) resolve(`https://${entry.listen}/`);
      if (entry.msg === "simulated: a GPU fails") node.failures.push({ at: Date.parse(entry.time), device: entry.device });
    });
  });
  return node;
}
