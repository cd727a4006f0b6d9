/** Retention with its form, and the settings that pages cannot change. */

import { h } from "../../lib/dom.js"
import { clock, counted, duration, isKnown, whole } from "../../lib/formatting.js"

const FIELDS = [
  {
    name: "raw_days",
    label: "Operations of closed windows",
    usual: "usual_raw_days",
    has: "has_own_raw_days",
    note: "needed by timelines and what-if questions",
  },
  {
    name: "results_days",
    label: "Windows, runs and alerts",
    usual: "usual_results_days",
    has: "has_own_results_days",
    note: "all figures of the past",
  },
  {
    name: "max_gb",
    label: "Windows of the project, in GB",
    usual: "usual_max_gb",
    has: "has_own_max_gb",
    note: "beyond, the oldest operations go first, then the oldest windows",
    unit: "GB",
    min: 0.001,
    max: 1e9,
  },
]

/** The card with its form. */
export function retentionCard({ retention, state, act }) {
  const isRefused = state.refused?.form === "retention"
  return h(
    "section",
    { class: "card", "data-key": "retention", "aria-label": "Retention" },
    h(
      "header",
      {},
      h("h2", {}, "Retention"),
      h("span", { class: "explanation" }, "in days and GB; empty: server default"),
    ),
    h(
      "form",
      {
        class: "form",
        onsubmit: act.keep,
        oninput: () => (state.isShort || state.saved) && act.set({ isShort: false, saved: null }),
      },
      h(
        "div",
        { class: "fields" },
        FIELDS.map((field) => fieldOf(field, retention)),
      ),
      state.isShort &&
        h(
          "p",
          { class: "warning", role: "alert" },
          "This is less than now. Older data is deleted within the hour and cannot be restored.",
        ),
      isRefused && h("p", { class: "refused", role: "alert" }, state.refused.text),
      h(
        "div",
        { class: "acts" },
        h("button", { class: "button", type: "submit" }, state.isShort ? "Keep less" : "Save"),
        state.saved && h("span", { class: "quiet" }, `Saved at ${clock(state.saved)}.`),
      ),
    ),
  )
}

/** The form's values: days and GB, or null for the server default. */
export function retentionOf(form) {
  return Object.fromEntries(
    FIELDS.map(({ name }) => [name, form.elements[name].value === "" ? null : Number(form.elements[name].value)]),
  )
}

function fieldOf({ name, label, usual, has, note, unit = "days", min = 1, max = 36500 }, retention) {
  const written = (number) => (isKnown(number) ? `${number} ${unit}` : "no quota")
  const own = retention[has] ? written(retention[name]) : `${written(retention[usual])}, the server default`
  const used = unit === "GB" ? `, ${Number(retention.stored_gb.toPrecision(2))} GB used` : ""
  return h(
    "label",
    {},
    h("b", {}, label),
    h("input", {
      class: "field",
      name,
      type: "number",
      min,
      max,
      step: "any",
      value: retention[has] ? retention[name] : "",
      placeholder: isKnown(retention[usual]) ? String(retention[usual]) : "no quota",
    }),
    h("small", {}, `Now ${own}${used}; ${note}.`),
  )
}

/** The cards beside the forms. */
export function factsCards(settings) {
  return [
    card("Analysis", "window size, waiting times and limits", [
      ["Window", counted(settings.window_steps, "step"), "WINDOW_STEPS"],
      ["A step waits for its last worker", duration(settings.step_deadline_s), "STEP_DEADLINE_S"],
      ["Late data updates a closed window for", duration(settings.revise_for_s), "REVISE_FOR_S"],
      ["Silent after", duration(settings.silent_after_s), "SILENT_AFTER_S"],
      ["Jobs of a project", whole(settings.max_jobs), "LIMIT_JOBS"],
    ]),
    h(
      "section",
      { class: "card", "data-key": "alerting", "aria-label": "Alerts" },
      h("header", {}, h("h2", {}, "Alerts")),
      h(
        "p",
        {},
        h("a", { href: "/alerts/rules" }, "Rules"),
        " define when an alert fires, ",
        h("a", { href: "/alerts/receivers" }, "receivers"),
        " are notified of it.",
      ),
    ),
  ]
}

function card(name, explanation, rows) {
  return h(
    "section",
    { class: "card", "data-key": name, "aria-label": name },
    h("header", {}, h("h2", {}, name), h("span", { class: "explanation" }, explanation)),
    h(
      "dl",
      { class: "in-force" },
      rows.map(([label, value, variable]) =>
        h("div", {}, h("dt", {}, label, h("code", {}, `PACELINE_${variable}`)), h("dd", { class: "number" }, value)),
      ),
    ),
  )
}
