// Elements, times and short sentences, for all parts of the page. Texts are inserted as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Make an element: its properties, and what is in it. */
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Make an icon of paths, by the class of each. */
export function icon(paths) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  for (const [className, d] of Object.entries(paths)) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", className);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

/** Write seconds as 1:02 or 1:00:02. */
export function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(s / 3600), minutes = Math.floor(s / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
}

/** Tell those who listen to the page instead of seeing it. */
export function say(sentence) {
  $("said").textContent = sentence;
}

/** Return the value of a colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Fit a canvas to its box, and return its context and size in CSS pixels; null while it is not shown. */
export function fitted(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), scale = devicePixelRatio || 1;
  if (!width) return null;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
