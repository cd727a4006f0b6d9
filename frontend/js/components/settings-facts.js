/** What the service goes by and cannot be changed on a page. */

import { h } from "../dom.js"
import { counted, duration, whole } from "../words.js"

/** The cards beside the forms; `onSignOut` ends this browser's session. */
export function factsCards(settings, onSignOut) {
  return [
    card("Judging a job", "what is looked at, and when it is silent", [
      ["Window", counted(settings.window_steps, "step"), "WINDOW_STEPS"],
      ["A step waits for its last worker", duration(settings.step_deadline_s), "STEP_DEADLINE_S"],
      ["Late data revises a window for", duration(settings.revise_for_s), "REVISE_FOR_S"],
      ["Silent after", duration(settings.silent_after_s), "SILENT_AFTER_S"],
      ["Jobs of a project", whole(settings.max_jobs), "LIMIT_JOBS"],
    ]),
    h(
      "section",
      { class: "card", "data-key": "alerting", "aria-label": "Alerts" },
      h("header", {}, h("h2", {}, "Alerts")),
      h("p", {}, h("a", { href: "/alerts/rules" }, "Rules"), " say when one fires, ", h("a", { href: "/alerts/receivers" }, "receivers"), " are told of it."),
    ),
    h(
      "section",
      { class: "card", "data-key": "session", "aria-label": "This browser" },
      h("header", {}, h("h2", {}, "This browser")),
      h("p", {}, `It stays signed in for ${duration(settings.session_hours * 3600)}. Signing out takes the session from this browser alone; to end it everywhere, revoke its token.`),
      h("button", { class: "button", type: "button", onclick: onSignOut }, "Sign out"),
    ),
  ]
}

function card(name, explanation, rows) {
  return h(
    "section",
    { class: "card", "data-key": name, "aria-label": name },
    h("header", {}, h("h2", {}, name), h("span", { class: "explanation" }, explanation)),
    h("dl", { class: "in-force" }, rows.map(([label, value, variable]) => h("div", {}, h("dt", {}, label, h("code", {}, `PACELINE_${variable}`)), h("dd", { class: "number" }, value)))),
  )
}
