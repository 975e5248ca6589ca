// Reads one JSON string (a chart) a line, writes as JSON, a line each, which classes and
// styles Mermaid gives to which node.
import { createInterface } from 'node:readline';
import DOMPurify from 'dompurify';

DOMPurify.sanitize = (text) => text;
DOMPurify.addHook ??= () => {};
for (const name of ['log', 'warn', 'error', 'info', 'debug']) console[name] = () => {};

const mermaid = (await import('mermaid')).default;
mermaid.initialize({ startOnLoad: false, maxEdges: 1e9, maxTextSize: 1e9, logLevel: 5 });

async function answer(text) {
  try {
    const { db } = await mermaid.mermaidAPI.getDiagramFromText(text);
    const nodes = [...db.getVertices().values()];
    return {
      nodes: nodes.map((node) => [node.id, node.classes, node.styles]),
      classes: [...db.getClasses().keys()],
    };
  } catch (error) {
    return { invalid: true, why: String(error?.message ?? error).slice(0, 300) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n');
}
