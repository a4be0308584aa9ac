// JSON in which no number is rounded: integers beyond 2^53, as keys and positions have them, stay the text that they are.
// A browser that cannot keep them (before 2024) reads them as others do, and refuses to write them.

const canKeep = typeof JSON.rawJSON === "function";

export const isSafe = (text) => !/^-?\d+$/.test(text) || Number.isSafeInteger(Number(text));

export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    const isWide = typeof value === "number" && context?.source !== undefined && !isSafe(context.source);
    return isWide && canKeep ? JSON.rawJSON(context.source) : value;
  });
}

// What somebody typed as a number; undefined if it would be rounded.
export function number(text) {
  if (isSafe(text)) return Number(text);
  return canKeep ? JSON.rawJSON(String(BigInt(text))) : undefined;
}

export const shown = (value) => value?.rawJSON ?? value;
