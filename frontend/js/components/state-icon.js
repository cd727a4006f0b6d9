/** Icons of states: a shape of 12 px, always beside its word. */

import { h } from "../lib/dom.js"

const TICK = () => [
  h("path", { d: "M1.5 6.5 4.5 9.5 10.5 2.5", fill: "none", stroke: "currentColor", "stroke-width": 1.75 }),
]
const RING = () => [
  h("circle", {
    cx: 6,
    cy: 6,
    r: 4.75,
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.5,
    "stroke-dasharray": "2.2 1.53",
  }),
]
const SHAPES = {
  healthy: TICK,
  finished: TICK,
  straggling: () => [h("path", { d: "M6 .8 11.8 11.2H.2z", fill: "currentColor" })],
  stalled: () => [h("rect", { x: 1, y: 1, width: 10, height: 10, fill: "currentColor" })],
  crashed: () => [h("path", { d: "M2 2 10 10M10 2 2 10", stroke: "currentColor", "stroke-width": 2.25 })],
  preempted: () => [h("rect", { x: 1.75, y: 1.75, width: 8.5, height: 8.5, fill: "none", stroke: "currentColor" })],
  silent: RING,
  unknown: RING,
  "low-fidelity": () => [
    h("circle", { cx: 6, cy: 6, r: 5, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }),
    h("path", { d: "M6 1a5 5 0 0 0 0 10z", fill: "currentColor" }),
  ],
  "not-analysed": () => [h("rect", { x: 1, y: 5, width: 10, height: 2, fill: "currentColor" })],
  live: () => [
    h("circle", { cx: 6, cy: 6, r: 6, fill: "currentColor", opacity: 0.18 }),
    h("circle", { cx: 6, cy: 6, r: 3.5, fill: "currentColor" }),
  ],
  warning: () => [
    h("path", { d: "M6 1 11.3 10.8H.7z", fill: "none", stroke: "currentColor", "stroke-linejoin": "round" }),
    h("path", { d: "M6 4.6v3M6 8.4v1.1", fill: "none", stroke: "currentColor" }),
  ],
}
const TONES = {
  healthy: "is-ok",
  straggling: "is-lost",
  stalled: "is-bad",
  crashed: "is-bad",
  unknown: "is-stale",
  "low-fidelity": "is-doubt",
  live: "is-ok",
}

/** The word for each state. */
export const STATE_WORDS = {
  healthy: "Healthy",
  straggling: "Straggling",
  stalled: "Stalled",
  silent: "Silent",
  unknown: "Unknown",
  "low-fidelity": "Low fidelity",
  "not-analysed": "Not analysed",
  finished: "Finished",
  crashed: "Crashed",
  preempted: "Preempted",
}

/** Whether the job is over, well or not. */
export const isOver = ({ state }) => state === "finished" || state === "crashed" || state === "preempted"

/** The icon alone; `tone` overrides its colour. */
export function stateIcon(name, tone = TONES[name] ?? "") {
  return h("svg", { class: `mark ${tone}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, SHAPES[name]())
}

/** The icon of a state with its word. */
export function stateLabel(state) {
  return h("span", { class: "state" }, stateIcon(SHAPES[state] ? state : "not-analysed"), STATE_WORDS[state] ?? state)
}
