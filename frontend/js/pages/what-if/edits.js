/** Edits of a question: as typed, as the API takes them, and as the address has them. */

import { getJson } from "../../lib/api.js"

const RANGE = /^(\d{1,15})(?:\s*[-\u2013]\s*(\d{1,15}))?$/
const WORKER = /^(\d{1,9})\s*\/\s*(\d{1,9})$/
const SECONDS = /^([-+\u2212]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(s|ms|us)?$/i
const PER_SECOND = { s: 1, ms: 1e3, us: 1e6 }
// As many as the API takes in one list.
const MAX_LISTED = 8192

const FIELDS = { stages: numbers, dp_ranks: numbers, workers: workers, steps: numbers, microbatches: numbers }

/** The names of an edit's fields that are typed as numbers. */
const TYPED = Object.keys(FIELDS)

let drafts = 0

/** A draft of an edit as the API has it; one of every operation, unchanged, where none is given. */
export function draftOf({ select = {}, change = { kind: "factor", value: 1 } } = {}) {
  const typed = Object.fromEntries(TYPED.map((name) => [name, listText(name, select[name] ?? [])]))
  return {
    key: `edit-${++drafts}`,
    op_types: [...(select.op_types ?? [])],
    ...typed,
    kind: change.kind,
    value: valueText(change),
    isPicking: false,
  }
}

/** A draft as `{edit, problems}`; with problems, which are sentences by field, the edit is null. */
export function editOf(draft) {
  const select = draft.op_types.length ? { op_types: draft.op_types } : {}
  const problems = {}
  for (const name of TYPED) {
    const read = attempt(problems, name, () => FIELDS[name](draft[name]))
    if (read?.length) select[name] = read
  }
  const change = attempt(problems, "value", () => changeOf(draft))
  const edit = Object.keys(select).length ? { select, change } : { change }
  return Object.keys(problems).length ? { edit: null, problems } : { edit, problems }
}

/** Numbers as people write them: 0-3, 7. */
export function listText(name, values) {
  if (name === "workers") return values.map(([dpRank, stage]) => `${dpRank}/${stage}`).join(", ")
  return ranges(values)
    .map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`))
    .join(", ")
}

/** Successive numbers as first and last. */
export function ranges(values) {
  const found = []
  for (const value of [...new Set(values)].sort((a, b) => a - b)) {
    if (found.length && value === found.at(-1)[1] + 1) found.at(-1)[1] = value
    else found.push([value, value])
  }
  return found
}

function attempt(problems, name, read) {
  try {
    return read()
  } catch (error) {
    problems[name] = error.message
    return null
  }
}

function numbers(text) {
  const found = new Set()
  for (const part of parts(text)) {
    const [, first, last = first] = RANGE.exec(part) ?? refuse("Write numbers, as 0-3, 7.")
    if (Number(last) - Number(first) >= MAX_LISTED)
      refuse(`Name at most ${MAX_LISTED} of them, or leave it empty for all.`)
    if (Number(last) < Number(first)) refuse("Write the smaller number first, as 0-3.")
    for (let number = Number(first); number <= Number(last); number += 1) found.add(number)
  }
  if (found.size > MAX_LISTED) refuse(`Name at most ${MAX_LISTED} of them, or leave it empty for all.`)
  return [...found]
}

function workers(text) {
  return parts(text).map((part) => worker(part, "Write dp rank and stage, as 3/1, 4/1."))
}

function worker(text, problem) {
  const [, dpRank, stage] = WORKER.exec(text.trim()) ?? refuse(problem)
  return [Number(dpRank), Number(stage)]
}

function changeOf({ kind, value }) {
  switch (kind) {
    case "factor":
      return { kind, value: factor(value) }
    case "add":
      return { kind, value: seconds(value, "Write a time, as 5 ms or -0.2 s.") }
    case "set":
      return { kind, value: atLeast0(seconds(value, "Write a time, as 0, 5 ms or 0.2 s.")) }
    case "from-worker": {
      const [dp_rank, stage] = worker(value, "Write dp rank and stage, as 2/1.")
      return { kind, dp_rank, stage }
    }
  }
  return { kind: "ideal" }
}

function factor(text) {
  const [, number, unit] = SECONDS.exec(text.trim()) ?? refuse("Write a number, as 0.8.")
  return unit ? refuse("Write a number without a unit, as 0.8.") : atLeast0(plain(number))
}

function seconds(text, problem) {
  const [, number, unit = "s"] = SECONDS.exec(text.trim()) ?? refuse(problem)
  return plain(number) / PER_SECOND[unit.toLowerCase()]
}

const plain = (text) => Number(text.replace("\u2212", "-"))
const parts = (text) =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean)
const atLeast0 = (number) => (number < 0 ? refuse("It cannot be below 0.") : number)

function refuse(problem) {
  throw new Error(problem)
}

function valueText({ kind, value, dp_rank, stage }) {
  if (kind === "from-worker") return `${dp_rank}/${stage}`
  if (kind === "factor") return `${value}`
  return kind === "add" || kind === "set" ? secondsText(value) : ""
}

function secondsText(value_s) {
  const size = Math.abs(value_s)
  const unit = size === 0 || size >= 1 ? "s" : size >= 1e-3 ? "ms" : "us"
  return `${Number((value_s * PER_SECOND[unit]).toPrecision(12))} ${unit}`
}

const KINDS = new Set(["ideal", "factor", "add", "set", "from-worker"])

/**
 * What to show at first: `{window, edits, shown, firstSteps}`.
 *
 * `edits` are null where the address has none, `shown` is the saved question that it names, and
 * `firstSteps` are the steps that the reader has come from. The newest closed window is asked
 * where none is named; of several the last one.
 */
export async function askedAtFirst(base, windows, { window, steps, edits, saved }) {
  const newest = windows[0]?.window_id ?? null
  if (saved) {
    const shown = await getJson(`${base}/what-ifs/${encodeURIComponent(saved)}`)
    return { shown, window: shown.window, edits: editsIn(JSON.stringify(shown.edits)), firstSteps: null }
  }
  const named = window && window !== "latest" ? window.split("..").at(-1) : newest
  return { shown: null, window: named, edits: edits === null ? null : editsIn(edits), firstSteps: steps }
}

/** The edits in a JSON text, in this page's form; invalid ones are skipped. */
function editsIn(text) {
  try {
    const given = JSON.parse(text)
    return Array.isArray(given) ? given.map(editIn).filter(Boolean) : []
  } catch {
    return []
  }
}

/** A question as canonical JSON text: equal for equal questions. */
export const canonical = (edits) => JSON.stringify(editsIn(JSON.stringify(edits)))

/** An edit in canonical form: lists sorted, fields that select everything dropped. */
function editIn(given) {
  try {
    return KINDS.has(given.change.kind) ? editOf(draftOf(given)).edit : null
  } catch {
    return null
  }
}
