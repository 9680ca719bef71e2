// Numbers with units, short enough for a cell.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const NONE = "\u2013";

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 1,234 */
export function count(value) {
  return known(value) ? whole.format(value) : NONE;
}

/** 1,234; 12.3K from 10,000 on */
export function compact(value) {
  if (!known(value)) return NONE;
  return Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);
}

/** Per second: one digit behind the point if it is small. */
export function rate(value) {
  if (!known(value)) return NONE;
  return value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : compact(value);
}

/** 12.3 MB */
export function bytes(value) {
  if (!known(value)) return NONE;
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 999.5 || unit === "TB") return unit === "B" ? `${Math.round(size)} B` : `${digits(size)} ${unit}`;
    size /= 1000;
  }
  return NONE;
}

/** 820 µs, 2.10 ms, 1.20 s, 3 m 12 s, 1 h 04 m, 2 d 3 h */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 0.9995e-6) return `${digits(seconds * 1e9)} ns`;
  if (seconds < 0.9995e-3) return `${digits(seconds * 1e6)} \u00b5s`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  const s = Math.floor(seconds);
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Whole seconds below a minute: for what grows while one looks. */
export function age(seconds) {
  if (!known(seconds)) return NONE;
  return seconds < 60 ? `${Math.max(0, Math.floor(seconds))} s` : duration(seconds);
}

/** A counter by what its name says it is in. */
export function counter(name, value) {
  if (!known(value)) return NONE;
  if (name.endsWith("_ns")) return duration(value / 1e9);
  if (/(^|_)bytes(_|$)|^memory_/.test(name)) return bytes(value);
  if (!Number.isInteger(value) && Math.abs(value) < 1) return String(Number(value.toPrecision(3)));
  if (!Number.isInteger(value) && Math.abs(value) < 1000) return digits(value);
  return compact(value);
}

export function percent(share) {
  if (!known(share)) return NONE;
  const value = share * 100;
  return `${value >= 99.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)}%`;
}

const moneys = new Map();

/** In a currency of three letters; of another kind, as a plain number. */
export function money(value, currency) {
  if (!known(value)) return NONE;
  if (value > 0 && value < 0.00005) return `<${money(0.0001, currency)}`;
  const digitsBehind = Math.abs(value) >= 1 || value === 0 ? 2 : 4;
  const key = `${currency}${digitsBehind}`;
  if (!moneys.has(key)) {
    const options = { minimumFractionDigits: digitsBehind, maximumFractionDigits: digitsBehind };
    try {
      moneys.set(key, new Intl.NumberFormat("en", { ...options, style: "currency", currency: currency || "" }));
    } catch {
      moneys.set(key, new Intl.NumberFormat("en", options));
    }
  }
  return moneys.get(key).format(value);
}

/** 14:03:07, with the date if it is another day. `seconds` since the epoch. */
export function clock(seconds) {
  if (!known(seconds) || seconds <= 0) return NONE;
  const when = new Date(seconds * 1000);
  if (Number.isNaN(when.getTime())) return NONE;
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

/** "3 s ago" of a time, by the pool's clock. */
export function ago(seconds, now) {
  return known(seconds) && known(now) ? `${age(Math.max(0, now - seconds))} ago` : NONE;
}
