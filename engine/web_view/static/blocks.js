// What the events of a stream add up to. Pure: a state and a lot of events give the next state.
// A state is a list of blocks; text is kept in pieces, so that a page draws only the last one anew.

const PIECE = 4000;
export const MOST_CHARACTERS = 4_000_000;

export const nothing = () => ({ blocks: [], characters: 0, ended: null, cut: 0 });

function add(block, text) {
  const last = block.pieces[block.pieces.length - 1];
  if (last === undefined || (last.length > PIECE && last.endsWith("\n")) || last.length > 4 * PIECE) block.pieces.push(text);
  else block.pieces[block.pieces.length - 1] = last + text;
  block.characters += text.length;
}

function grow(state, event, kind, text, more = {}) {
  const id = `${event.message_id}:${event.content_block_index ?? 0}:${event.tool_use_id ?? ""}`;
  let block = state.blocks[state.blocks.length - 1];
  if (!block || block.id !== id || block.kind !== kind) {
    block = { id, kind, pieces: [], characters: 0, ...more };
    state.blocks.push(block);
  }
  if (text) { add(block, text); state.characters += text.length; }
  else if (event.characters) { block.characters += event.characters; state.characters += event.characters; }
  block.version = (block.version ?? 0) + 1;
  return block;
}

// A long stream keeps its end: what is dropped is told.
function trim(state) {
  while (state.characters > MOST_CHARACTERS && state.blocks.length) {
    const block = state.blocks[0];
    const piece = block.pieces.length > 1 || state.blocks.length > 1 ? block.pieces.shift() : undefined;
    if (piece === undefined) { if (state.blocks.length > 1) state.blocks.shift(); else return; continue; }
    state.cut += piece.length;
    state.characters -= piece.length;
    block.dropped = (block.dropped ?? 0) + 1;
    if (!block.pieces.length && state.blocks.length > 1) state.blocks.shift();
  }
}

const of = (event) => ({ message_id: event.message_id });

function take(state, event) {
  switch (event.type) {
    case "stream.reset": {
      Object.assign(state, nothing());
      for (const each of event.snapshot) take(state, each);
      return;
    }
    case "message.start":
      state.blocks.push({ id: `start:${event.message_id}`, kind: "start", model: event.model, provider: event.provider, warnings: event.warnings ?? [], pieces: [], characters: 0, ...of(event) });
      return;
    case "text.delta": grow(state, event, "text", event.text); return;
    case "thinking.delta": grow(state, event, "thinking", event.text); return;
    case "tool.use_start": grow(state, event, "tool", "", { name: event.tool_name, tool_use_id: event.tool_use_id }); return;
    case "tool.use_input_delta": {
      const block = [...state.blocks].reverse().find((each) => each.kind === "tool" && each.tool_use_id === event.tool_use_id);
      if (block && event.partial_json) { add(block, event.partial_json); state.characters += event.partial_json.length; block.version += 1; }
      else if (block) { block.characters += event.characters ?? 0; block.version += 1; }
      return;
    }
    case "tool.use_end": {
      const block = state.blocks.find((each) => each.tool_use_id === event.tool_use_id);
      if (block) { block.whole = !event.incomplete; block.version += 1; }
      return;
    }
    case "message.complete": whole(state, event); return;
    case "tool.started": case "tool.progress": case "tool.finished": {
      const block = state.blocks.find((each) => each.tool_use_id === event.tool_use_id && each.kind === "tool");
      if (block) { block.run = event.type.slice(5); block.is_error = event.is_error; block.latency_ms = event.latency_ms; block.version += 1; }
      return;
    }
    case "user.message":
      state.blocks.push({ id: `user:${event.message_id}`, kind: "user", pieces: [(event.content ?? []).map((each) => each.text ?? "").join("")], characters: 0 });
      return;
    case "provider.block": state.blocks.push({ id: `block:${state.blocks.length}`, kind: "provider", name: event.kind, pieces: [], characters: 0 }); return;
    case "step.finish": state.blocks.push({ id: `step:${event.step}`, kind: "step", step: event.step, stop_reason: event.stop_reason, usage: event.usage, cost: event.cost, pieces: [], characters: 0 }); return;
    case "turn.complete": state.ended = { status: event.status, error: event.error }; return;
    default:
  }
}

// A message's end brings its content to whoever comes after its deltas were folded.
function whole(state, event) {
  const known = state.blocks.some((block) => block.id.startsWith(`${event.message_id}:`));
  if (!known) {
    (event.final_content ?? []).forEach((block, index) => {
      const at = { message_id: event.message_id, content_block_index: index };
      if (block.kind === "text") grow(state, at, "text", block.text);
      else if (block.kind === "thinking") grow(state, at, "thinking", block.text);
      else if (block.kind === "tooluse") {
        const made = grow(state, { ...at, tool_use_id: block.id }, "tool", JSON.stringify(block.input), { name: block.name, tool_use_id: block.id });
        made.whole = !block.incomplete;
      }
    });
  }
  state.blocks.push({ id: `end:${event.message_id}`, kind: "end", stop_reason: event.stop_reason, usage: event.usage, pieces: [], characters: 0 });
}

export function fold(state, events) {
  for (const event of events) take(state, event);
  trim(state);
  return state;
}
