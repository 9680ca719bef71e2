// The filter of a table: words that must occur, and conditions such as denials>0, state:running, -tenant:evals, label.run=7, memory>=50MB.

const BYTES = { b: 1, k: 1e3, kb: 1e3, m: 1e6, mb: 1e6, g: 1e9, gb: 1e9, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3 };
const SECONDS = { us: 1e-6, "\u00b5s": 1e-6, ms: 1e-3, s: 1, m: 60, min: 60, h: 3600, d: 86400 };
const PLAIN = { k: 1e3, m: 1e6 };
const CONDITION = /^(-?)([a-z_]+(?:\.[^\s:<>=!]+)?)(:|!=|>=|<=|>|<|=)(.*)$/i;

/** Words of a text; "in quotes" is one. */
function words(text) {
  return text.match(/-?[^\s"]*"[^"]*"?|\S+/g)?.map((word) => word.replaceAll('"', "")) ?? [];
}

function number(text, kind) {
  const found = /^(-?[\d.]+)\s*([a-z\u00b5%]*)$/i.exec(text);
  if (!found || Number.isNaN(Number(found[1]))) return null;
  const units = kind === "bytes" ? BYTES : kind === "seconds" ? SECONDS : PLAIN;
  const unit = found[2].toLowerCase();
  if (unit && !(unit in units)) return null;
  return Number(found[1]) * (unit ? units[unit] : 1);
}

const COMPARED = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => a === b,
  ":": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

/**
 * {test(row), error}. `fields`: name -> {kind: "text" | "number" | "bytes" | "seconds", get(row)}; "label" is {kind: "map"}: label:x is
 * a name or value, label.NAME=VALUE one label. `text(row)`: where words are looked for. All must be true.
 */
export function compile(query, fields, text) {
  const tests = [];
  let error = "";
  for (const word of words(query.slice(0, 500))) {
    const found = CONDITION.exec(word);
    const [name, ...path] = found ? found[2].split(".") : [""];
    const field = found ? fields[name.toLowerCase()] : undefined;
    if (!found || (field === undefined && !path.length && found[3] === ":")) {
      const negated = word.startsWith("-") && word.length > 1;
      const wanted = (negated ? word.slice(1) : word).toLowerCase();
      tests.push((row) => text(row).includes(wanted) !== negated);
      continue;
    }
    if (field === undefined) {
      error = `There is no field \u201c${name}\u201d`;
      continue;
    }
    const made = condition(field, path.join("."), found[3], found[4]);
    if (typeof made === "string") error = made;
    else tests.push(found[1] ? (row) => !made(row) : made);
  }
  return { error, test: (row) => tests.every((each) => each(row)) };
}

function condition(field, path, operator, value) {
  const wanted = value.toLowerCase();
  if (field.kind === "map") {
    if (path) return texts((row) => (Object.hasOwn(field.get(row), path) ? field.get(row)[path] : null), operator, wanted);
    const holds = (row) => Object.entries(field.get(row)).some(([name, each]) => `${name}=${each}`.toLowerCase().includes(wanted));
    return operator === "!=" ? (row) => !holds(row) : holds;
  }
  if (field.kind === "text") return texts(field.get, operator, wanted);
  if (value === "") return () => true; // still being typed
  const bound = number(value, field.kind);
  if (bound === null) return `\u201c${value}\u201d is not a number`;
  return (row) => {
    const have = field.get(row);
    return have !== null && have !== undefined && COMPARED[operator](have, bound);
  };
}

function texts(get, operator, wanted) {
  const lower = (row) => String(get(row) ?? "").toLowerCase();
  if (operator === ":") return (row) => lower(row).includes(wanted);
  if (operator === "=") return (row) => lower(row) === wanted;
  if (operator === "!=") return (row) => lower(row) !== wanted;
  return (row) => COMPARED[operator](lower(row), wanted);
}
