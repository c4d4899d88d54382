// Numbers, times and money in words. Money is whole nano-dollars; unknown is never zero.

export function usd(nano) {
  if (nano === null || nano === undefined) return "unknown";
  const size = Math.abs(nano);
  if (size === 0) return "$0";
  const places = size < 1e4 ? 9 : size < 1e7 ? 6 : size < 1e9 ? 4 : 2;
  const text = (size / 1e9).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  return `${nano < 0 ? "−" : ""}$${text}`;
}

export function exactUsd(nano) {
  if (nano === null || nano === undefined) return "unknown";
  const digits = String(Math.abs(nano)).padStart(10, "0");
  return `${nano < 0 ? "−" : ""}$${digits.slice(0, -9)}.${digits.slice(-9)}`;
}

// What an attempt cost, in the same words on every screen. A refused attempt costs nothing.
export const costOf = (row) => ({ known: usd(row.nano_usd), open: "in progress", unknown: "unknown", unpriced: "unpriced", nothing: "$0" }[row.billed]);

export const change = (nano) => (nano > 0 ? "+" : "") + usd(nano);

export function percent(before, after) {
  if (!before) return "";
  const part = ((after - before) / before) * 100;
  return `${part > 0 ? "+" : part < 0 ? "−" : ""}${Math.abs(part).toFixed(Math.abs(part) < 10 ? 1 : 0)} %`;
}

export const count = (number) => (number ?? 0).toLocaleString("en-US");

export const plural = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}

export function clock(us) {
  return us ? new Date(us / 1000).toLocaleTimeString([], { hour12: false }) : "–";
}

export function moment(us) {
  if (!us) return "–";
  const then = new Date(us / 1000), now = new Date();
  const time = then.toLocaleTimeString([], { hour12: false });
  return then.toDateString() === now.toDateString() ? time : `${then.toISOString().slice(0, 10)} ${time}`;
}

export function bytes(number) {
  if (number < 1e3) return `${number} B`;
  if (number < 1e6) return `${(number / 1e3).toFixed(1)} kB`;
  return `${(number / 1e6).toFixed(1)} MB`;
}

export const short = (id) => (id && id.length > 16 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id || "–");

// A sum of costs, with a mark where a part of it is estimated or not known.
export const costOfSum = (sum) => sum.unpriced || sum.unknown
  ? (sum.nano_usd ? `${usd(sum.nano_usd)} + ?` : "unpriced") : `${sum.estimated ? "≈ " : ""}${usd(sum.nano_usd)}`;
