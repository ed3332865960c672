// Node: a server on loopback and a request to it, a worker, a child, files.
const http = require("http");
const fs = require("fs");
const { Worker } = require("worker_threads");
const { execFileSync } = require("child_process");

const server = http.createServer((request, response) => response.end("served " + request.url));
server.listen(0, "127.0.0.1", async () => {
  const reply = await fetch(`http://127.0.0.1:${server.address().port}/here`);
  console.log(await reply.text());
  server.close();
  console.log(execFileSync("echo", ["child"]).toString().trim());
  fs.mkdirSync("node-made/deep", { recursive: true });
  fs.writeFileSync("node-made/deep/file", "text");
  fs.appendFileSync("node-made/deep/file", " more");
  console.log(fs.readFileSync("node-made/deep/file", "utf8"));
  fs.rmSync("node-made", { recursive: true });
  new Worker("require('worker_threads').parentPort.postMessage('worker')", { eval: true })
    .on("message", (m) => console.log(m));
});
