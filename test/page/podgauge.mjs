// The simulated node that is looked at: podgauge itself, over TLS and basic auth.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const viewer = { username: "viewer", password: "let me look" };
const hash = "$2a$04$HnjdakovY8v48xqf8541LuGR1pZxV3YWPZH5DH3eHosM3dprvzbsW"; // of the password, by bcrypt at its least cost

// start runs podgauge and returns where it listens. failures are the moments at which the
// simulation has had a GPU fail, as its log tells them.
export async function start(binary) {
  const dir = mkdtempSync(join(tmpdir(), "podgauge-page-"));
  const key = join(dir, "key.pem"), cert = join(dir, "cert.pem"), config = join(dir, "web.yml");
  execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=localhost",
    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], { stdio: "ignore" });
  writeFileSync(config, `tls_server_config: {cert_file: ${cert}, key_file: ${key}}\nbasic_auth_users: {${viewer.username}: "${hash}"}\n`);
  const child = spawn(binary, ["--web.listen-address=127.0.0.1:0", `--web.config.file=${config}`, "--log.format=json"],
    { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, NODE_NAME: "gpu-node-7" } });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const node = {
    failures: [],
    stop: async () => {
      child.kill("SIGTERM");
      await ended;
      rmSync(dir, { recursive: true, force: true });
    },
  };
  const log = createInterface({ input: child.stderr });
  node.url = await new Promise((resolve, reject) => {
    const said = [];
    ended.then(() => reject(new Error("podgauge ended:\n" + said.join("\n"))));
    log.on("line", (line) => {
      said.push(line);
      let entry;
      try {
        entry = JSON.parse(line);
      } catch {
        return; // what is no log
      }
      if (entry.listen) resolve(`https://${entry.listen}/`);
      if (entry.msg === "simulated: a GPU fails") node.failures.push({ at: Date.parse(entry.time), device: entry.device });
    });
  });
  return node;
}
