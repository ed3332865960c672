// Asks Claude Code itself, with a scripted model on loopback in the place of the
// real one. Reads cases from the file argv[3]: [{files: [{scope, text}], acts:
// [{name, input}]}], where $HOME in paths is the home it makes; writes what
// became of each act. Commands that are allowed are started through a shell
// prefix that does nothing. argv[2] is the program.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';

const cases = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'));

// A model that calls every tool once and then ends, and keeps the results.
function model(acts, results) {
  return http.createServer((request, response) => {
    let text = '';
    request.on('data', (part) => (text += part));
    request.on('end', () => {
      if (!request.url.startsWith('/v1/messages')) return response.writeHead(404).end('{}');
      if (request.url.includes('count_tokens')) return response.end('{"input_tokens":1}');
      const body = JSON.parse(text);
      const found = body.messages.flatMap((m) => (Array.isArray(m.content) ? m.content : []));
      for (const part of found) if (part.type === 'tool_result') results.set(part.tool_use_id, part);
      const calls = acts.map((act, i) => ({ type: 'tool_use', id: `toolu_${i}`, ...act }));
      const asks = results.size === 0 && (body.tools ?? []).length > 3;
      const content = asks ? calls : [{ type: 'text', text: 'done' }];
      const stop = asks ? 'tool_use' : 'end_turn';
      const usage = { input_tokens: 1, output_tokens: 1 };
      const message = { id: 'msg_1', type: 'message', role: 'assistant', model: body.model, usage };
      if (!body.stream) return response.end(JSON.stringify({ ...message, content, stop_reason: stop }));
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const event = (type, data) => response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
      event('message_start', { message: { ...message, content: [], stop_reason: null } });
      content.forEach((part, index) => {
        const text = part.type === 'text';
        event('content_block_start', { index, content_block: text ? { type: 'text', text: '' } : { ...part, input: {} } });
        const delta = text
          ? { type: 'text_delta', text: part.text }
          : { type: 'input_json_delta', partial_json: JSON.stringify(part.input) };
        event('content_block_delta', { index, delta });
        event('content_block_stop', { index });
      });
      event('message_delta', { delta: { stop_reason: stop }, usage });
      event('message_stop', {});
      response.end();
    });
  });
}

function decision(result) {
  if (!result) return 'unknown';
  const text = typeof result.content === 'string' ? result.content : JSON.stringify(result.content);
  if (!result.is_error) return 'allow';
  if (/has been denied|denied access|No such tool available|while in plan mode|hook error|blocked by hook|No stderr output|denied by/.test(text)) return 'deny';
  if (/requested permissions|requires? (manual )?approval|was blocked|granted it yet|Contains |cannot be|explicit approval|which can |defers execution|approval|Parse error|evaluates arguments/i.test(text)) return 'ask';
  return `unknown: ${text}`;
}

async function ask(one) {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), 'stockade-claude-'));
  const put = (name, text) => {
    fs.mkdirSync(path.dirname(path.join(home, name)), { recursive: true });
    fs.writeFileSync(path.join(home, name), text, { mode: 0o755 });
  };
  const settings = (text) => text.replaceAll('/home/u', home);
  // It is also put before the commands of hooks, which are to be run.
  put('nothing', '#!/bin/sh\n[ "$1" = "exit 2" ] && exit 2\nexit 0\n');
  put('work/README.md', 'x\n');
  put('work/src/a.rs', 'x\n');
  put('other/x', 'x\n');
  put('.claude.json', JSON.stringify({ projects: { [`${home}/work`]: { hasTrustDialogAccepted: true } } }));
  for (const file of one.files) {
    if (file.scope === 'user') put('.claude/settings.json', settings(file.text));
    else if (file.scope === 'admin') {
      // Managed settings have one place only, which the caller must lend.
      fs.mkdirSync('/etc/claude-code', { recursive: true });
      fs.writeFileSync('/etc/claude-code/managed-settings.json', settings(file.text));
    } else put('work/.claude/settings.json', settings(file.text));
  }
  const acts = JSON.parse(settings(JSON.stringify(one.acts)));
  const results = new Map();
  const server = model(acts, results);
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  const environment = {
    PATH: process.env.PATH,
    HOME: home,
    ANTHROPIC_API_KEY: 'scripted',
    ANTHROPIC_BASE_URL: `http://127.0.0.1:${server.address().port}`,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
    CLAUDE_CODE_SHELL_PREFIX: path.join(home, 'nothing'),
  };
  const child = spawn(process.argv[2], ['-p', 'go'], { cwd: `${home}/work`, env: environment, stdio: 'ignore' });
  const timer = setTimeout(() => child.kill('SIGKILL'), 60000);
  await new Promise((ended) => child.on('close', ended));
  clearTimeout(timer);
  server.close();
  if (managed(one)) fs.rmSync('/etc/claude-code/managed-settings.json');
  fs.rmSync(home, { recursive: true });
  return acts.map((_, i) => decision(results.get(`toolu_${i}`)));
}

// Settings of an administrator have one place: such cases run by themselves.
const answers = [];
const managed = (one) => one.files.some((file) => file.scope === 'admin');
for (const [i, one] of cases.entries()) if (managed(one)) answers[i] = await ask(one);
const rest = cases.keys();
const worker = async () => {
  for (const i of rest) if (!managed(cases[i])) answers[i] = await ask(cases[i]);
};
await Promise.all([worker(), worker(), worker(), worker()]);
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
