// Asks Gemini CLI's own policy engine. Reads cases from the file argv[3]:
// [{files: [{scope, name, text}], acts: [{name, args}]}]; writes the decisions.
// argv[2] is a module that exports its core: `bundle/core-*.js` of the package.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const write = process.stdout.write.bind(process.stdout);
for (const name of ['log', 'debug', 'info', 'warn', 'error']) console[name] = () => {};
const core = await import(pathToFileURL(process.argv[2]));
const cases = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'));
const answers = [];
for (const one of cases) {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), 'stockade-gemini-'));
  process.env.GEMINI_CLI_HOME = home;
  const directory = { user: 'user', admin: 'admin', project: 'project' };
  for (const name of Object.values(directory)) fs.mkdirSync(path.join(home, name));
  let settings = {};
  for (const file of one.files) {
    if (file.name.endsWith('.json')) settings = new Function(`return (${file.text})`)();
    else fs.writeFileSync(path.join(home, directory[file.scope], file.name), file.text);
  }
  const tools = settings.tools ?? {};
  const config = await core.createPolicyEngineConfig({
    mcp: settings.mcp,
    mcpServers: settings.mcpServers,
    tools: {
      ...tools,
      allowed: tools.allowed ?? settings.allowedTools,
      exclude: tools.exclude ?? settings.excludeTools,
      core: tools.core ?? settings.coreTools,
    },
    policyPaths: [path.join(home, 'user')],
    adminPolicyPaths: [path.join(home, 'admin')],
    disableAlwaysAllow: settings.security?.disableAlwaysAllow,
  }, settings.general?.defaultApprovalMode ?? 'default', undefined, true);
  const engine = new core.PolicyEngine(config);
  const decisions = [];
  for (const act of one.acts) decisions.push((await engine.check(act, undefined)).decision);
  answers.push(decisions);
  fs.rmSync(home, { recursive: true });
}
write(JSON.stringify(answers), () => process.exit(0));
