// Names may hold characters that turn the direction of text, or that nobody can see. They are shown as such:
// whatever comes from the server or from the address passes here before anything else sees it.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// Whether some text of a JSON document would be changed: most documents are spared the walk through all they hold.
const SUSPECT = /\\[bfrtu]|[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;

export const needsCleaning = (json) => SUSPECT.test(json);

export const clean = (text) => String(text).replace(UNSEEN, (each) => (each === "\n" ? each : "\uFFFD"));

export function cleaned(value) {
  if (typeof value === "string") return clean(value);
  if (Array.isArray(value)) return value.map(cleaned);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, each]) => [clean(key), cleaned(each)]));
  return value;
}
