/** The answer of a question: headline, figures and legend. */

import { legend } from "../../components/chart-card.js"
import { statStrip } from "../../components/stat-strip.js"
import { counted, mean, percentNumber, ratio, roughHours, seconds, whole } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"
import { questionWords } from "./edit-words.js"

// A smaller relative difference counts as none.
const SAME = 0.001

/** The headline of an answer to `edits`; `gpus` are the job's, `title` what the question is called. */
export function answerWords({ edits, result, title }, gpus) {
  const { was_s, is_s, ideal_s } = times(result)
  if (!edits.length)
    return {
      sentence: "What if some operations took a different time?",
      sub: "Choose a suggestion or describe a change.",
    }
  const isSame = Math.abs(is_s / was_s - 1) < SAME
  const would = isSame
    ? `would still take ${seconds(was_s)}`
    : `would take ${seconds(is_s)} instead of ${seconds(was_s)}`
  const left =
    is_s > ideal_s * (1 + SAME) && ideal_s > 0
      ? `It leaves ${ratio(is_s / ideal_s)} of the ideal.`
      : "Nothing more is left to win back."
  const condition = title ? `With ${lowered(title)}` : `If ${questionWords(edits)}`
  return {
    sentence: `${condition}, a step ${would}.`,
    sub: isSame
      ? `No gain: the step waits for other operations. ${left}`
      : `${effect(perDay(result, gpus))} ${is_s > was_s ? "" : left}`.trim(),
  }
}

/** The strip of an answer; empty before there is one. With `isOld` it is of the previous question. */
export function answerStats(answer, gpus, isOld) {
  if (!answer)
    return statStrip(
      ["Step time", "Speed-up", "Slowdown left", "Saved", "Operations changed"].map((label) => ({
        label,
        note: "no answer yet",
      })),
    )
  return statStrip(
    [stepTime(answer), speedUp(answer), left(answer), saved(answer, gpus), changed(answer)].map((stat) => ({
      ...stat,
      isOld,
    })),
  )
}

/** The key of the chart of steps. */
export function answerLegend() {
  return legend(
    ["is-recorded", "recorded"],
    ["is-simulated", "simulated"],
    ["is-what-if", "what if"],
    ["is-ideal", "without stragglers"],
    ["is-won-back", "won back"],
    ["is-area", "still lost"],
  )
}

/** As they would be recorded: a replay has no late launches, so its times are scaled to the record. */
function times({ step_time_s: { recorded, simulated, ideal, expected } }) {
  const was_s = mean(recorded)
  return { was_s, is_s: mean(expected), ideal_s: (mean(ideal) * was_s) / mean(simulated) }
}

/** GPU-hours saved per day if all steps are like these; negative where more are lost. */
function perDay(result, gpus) {
  const { was_s, is_s } = times(result)
  return 24 * gpus * (1 - is_s / was_s)
}

const lowered = (title) => (/^[A-Z][a-z]/.test(title) ? title.charAt(0).toLowerCase() + title.slice(1) : title)
const hours = (value) => roughHours(Math.abs(value))
const about = (value) => (money(Math.abs(value)) ? `, about ${money(Math.abs(value))}` : "")

function effect(perDay) {
  return `That ${perDay >= 0 ? "saves" : "costs"} about ${hours(perDay)} GPU-hours a day${about(perDay)}.`
}

function stepTime({ result }) {
  const { was_s, is_s } = times(result)
  const [figure, unit] = seconds(is_s).split(" ")
  return {
    label: "Step time",
    figure,
    unit,
    note: `${seconds(was_s)} recorded, without the changes`,
  }
}

function speedUp({ result }) {
  const { was_s, is_s } = times(result)
  const value = result.against_recorded.speed_up
  if (value === null) return { label: "Speed-up", note: "a step would take no time" }
  const less = 1 - is_s / was_s
  return {
    label: "Speed-up",
    figure: ratio(value),
    note:
      Math.abs(less) < SAME
        ? "no change of the step time"
        : `a step takes ${percentNumber(Math.abs(less))} % ${less > 0 ? "less" : "more"} time`,
  }
}

function left({ result }) {
  const { was_s, ideal_s } = times(result)
  const value = result.against_ideal.slowdown
  if (value === null) return { label: "Slowdown left", note: "the ideal step takes no time" }
  const note =
    value < 1 - SAME
      ? `faster than the ideal, ${seconds(ideal_s)}, which is a mean that slow operations raise`
      : `${ratio(was_s / ideal_s)} without the changes; ideal is ${seconds(ideal_s)}`
  return { label: "Slowdown left", figure: ratio(value), note }
}

function saved({ result }, gpus) {
  const value = perDay(result, gpus)
  const label = value < 0 ? "Cost" : "Saved"
  return { label, figure: hours(value), unit: "GPU-h per day", note: `at ${counted(gpus, "GPU")}${about(value)}` }
}

function changed({ edits, result }) {
  const each = result.edits.map(({ changed_ops }) => changed_ops)
  const missing = result.edits.reduce((total, { ops_without_counterpart }) => total + ops_without_counterpart, 0)
  const note = missing
    ? `${whole(missing)} have no counterpart there`
    : edits.length > 1
      ? `by ${edits.length} changes`
      : `in ${counted(result.steps.length, "step")} of window ${result.window}`
  return { label: "Operations changed", figure: whole(each.reduce((total, number) => total + number, 0)), note }
}
