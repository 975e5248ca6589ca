// Reads one JSON string (a chart) a line, writes Mermaid's graph of it as JSON, a line each.
// Labels are cleaned with a library that needs a browser; its answer is not compared, so it
// is replaced by nothing. Everything else is Mermaid's own code.
import { createInterface } from 'node:readline';
import DOMPurify from 'dompurify';

DOMPurify.sanitize = (text) => text;
DOMPurify.addHook ??= () => {};
for (const name of ['log', 'warn', 'error', 'info', 'debug']) console[name] = () => {};

const mermaid = (await import('mermaid')).default;
mermaid.initialize({ startOnLoad: false, maxEdges: 1e9, maxTextSize: 1e9, logLevel: 5 });

const decode = (value) =>
  String(value).replace(/ﬂ°°/g, '&#').replace(/ﬂ°/g, '&').replace(/¶ß/g, ';');

async function answer(text) {
  try {
    const { db } = await mermaid.mermaidAPI.getDiagramFromText(text);
    return {
      direction: db.getDirection(),
      nodes: [...db.getVertices().values()].map((node) => ({
        id: node.id,
        label: decode(node.text),
        shape: node.type ?? null,
      })),
      edges: db.getEdges().map((edge) => ({
        from: edge.start,
        to: edge.end,
        label: decode(edge.text),
        stroke: edge.stroke,
        type: edge.type,
        length: edge.length,
      })),
      subgraphs: db.getSubGraphs().map((group) => ({
        id: group.id,
        title: decode(group.title),
        nodes: group.nodes,
        dir: group.dir ?? null,
      })),
    };
  } catch (error) {
    return { invalid: true, why: String(error?.message ?? error).slice(0, 300) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n');
}
