// Text of others made harmless to read. The DOM's textContent keeps it from being markup; this keeps it from moving, hiding or
// reordering what stands beside it, and from being too long.

// Controls, formats (bidi, zero width, tags), separators, surrogates, private and unassigned ones; and what prints as nothing
// (Default_Ignorable_Code_Point, blank Braille), as agentfw.texts has it. In what agents print emoji may be told to be in colour.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\p{DI}\u2800]/gu;
const UNSEEN_BUT_LINES = /[^\P{Cc}\n\t]|(?![\ufe0e\ufe0f])[\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\p{DI}\u2800]/gu;
const PILED_UP = /(\p{M}{3})\p{M}+/gu;

const NAMES = { 0: "NUL", 7: "BEL", 8: "BS", 9: "TAB", 10: "LF", 11: "VT", 12: "FF", 13: "CR", 27: "ESC", 127: "DEL" };

function picture(character) {
  const code = character.codePointAt(0);
  if (code in NAMES) return `\u2039${NAMES[code]}\u203a`;
  return `\u2039${code.toString(16).toUpperCase().padStart(4, "0")}\u203a`;
}

/** One line, at most `most` of its characters; what cannot be seen is shown by its name or number. */
export function harmless(value, most = 200) {
  const text = value === null || value === undefined ? "" : String(value);
  let cut = text.length > most ? text.slice(0, most) : text;
  cut = cut.replace(UNSEEN, picture).replace(PILED_UP, "$1\u2026");
  if (text.length > most) cut += `\u2026 (+${(text.length - most).toLocaleString("en")})`;
  return cut;
}

/** The same of several lines: line feeds and tabs stay. */
export function harmlessLines(value, most = 200_000) {
  const text = String(value ?? "");
  let cut = text.length > most ? text.slice(0, most) : text;
  cut = cut.replace(UNSEEN_BUT_LINES, picture).replace(PILED_UP, "$1\u2026");
  if (text.length > most) cut += `\n\u2026 (+${(text.length - most).toLocaleString("en")})`;
  return cut;
}

/** A name: never nothing at all. */
export function nameOf(value, most = 120) {
  const text = harmless(value, most);
  return text.trim() === "" ? "(blank)" : text;
}
