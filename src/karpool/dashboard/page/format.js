// Numbers and moments as people read them.

let ahead = 0; // how far the server's clock is ahead of ours, in seconds

export function serverTime(at) {
  ahead = at - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + ahead;

export function money(dollars, digits) {
  const places = digits ?? (Math.abs(dollars) >= 100 ? 0 : Math.abs(dollars) >= 10 ? 2 : 3);
  const text = Math.abs(dollars).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  return dollars < 0 && /[1-9]/.test(text) ? `−$${text}` : `$${text}`;
}

// What is paid, and beside it the list price where that is another.
export function price(each) {
  const listed = each.listPricePerHour;
  const same = listed === null || listed === undefined || Math.abs(listed - each.pricePerHour) < 5e-4;
  return `${money(each.pricePerHour)} per hour${same ? "" : ` (by the list ${money(listed)})`}`;
}

export const count = (number) => number.toLocaleString("en-US");
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toLocaleString("en-US", { maximumFractionDigits: share < 0.1 ? 2 : 1 })} %`);

export function amount(resource, units) {
  if (units === null) return "no limit";
  if (resource === "cpu") return `${short(units / 1000)} CPU`;
  if (resource === "memory") return `${short(units / 2 ** 30)} GiB`;
  return `${count(units)} ${resource.split("/").pop()}`;
}

export const resourceName = (resource) => ({ cpu: "CPU", memory: "Memory" })[resource] ?? resource;

function short(number) {
  return number.toLocaleString("en-US", { maximumFractionDigits: number < 10 ? 1 : 0 });
}

export function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  if (whole < 90 * 60) return `${Math.floor(whole / 60)} min ${whole % 60 ? `${whole % 60} s` : ""}`.trim();
  if (whole < 36 * 3600) return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
  return `${Math.round(whole / 86400)} days`;
}

export const ago = (at) => (at ? `${lasting(now() - at)} ago` : "–");
export const clock = (at) => (at ? new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }) : "–");
export const mebi = (bytes) => (bytes >= 2 ** 30 ? `${short(bytes / 2 ** 30)} GiB` : `${short(bytes / 2 ** 20)} MiB`);
