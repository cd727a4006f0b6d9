/** Which alerts are meant: by their labels, all of which have to match; as in app/alerts/matchers.py. */

import { contained } from "../words.js"

/** Labels that every alert has, beside those of its rule and its job. */
export const BUILT_IN = ["job", "rule", "severity", "subject", "cause", "worker", "host", "alertname", "project"]

// What a silence of one alert is made of: which rule, on which job, about what.
const IDENTITY = ["job", "rule", "subject"]

/** Matchers that mean this one alert, and the same one another time. */
export function matchersOf(labels) {
  return IDENTITY.filter((name) => labels[name]).map((label) => ({ label, pattern: literal(labels[label]), is_negative: false }))
}

/** Whether all of them match; none match everything. */
export function allMatch(matchers, labels) {
  return matchers.every(({ label, pattern, is_negative }) => fits(pattern, labels[label] ?? "") !== is_negative)
}

/** In words: "job is llm-*, severity is not info". */
export function matchersWords(matchers) {
  if (!matchers.length) return "every alert"
  return matchers.map(({ label, pattern, is_negative }) => `${label} ${is_negative ? "is not" : "is"} ${pattern === "" ? "empty" : contained(plain(pattern))}`).join(", ")
}

/** A pattern that matches a text and nothing else. */
export const literal = (text) => text.replace(/[*?[]/g, "[$&]")

const plain = (pattern) => pattern.replace(/\[([*?[])\]/g, "$1")

/** Whether a text is what a pattern with *, ? and [sets] means. */
function fits(pattern, text) {
  const parts = partsOf([...pattern])
  const letters = [...text]
  let [part, at, star, from] = [0, 0, -1, 0]
  while (at < letters.length) {
    if (parts[part] === "*") [star, from] = [part++, at]
    else if (part < parts.length && parts[part](letters[at])) [part, at] = [part + 1, at + 1]
    else if (star < 0) return false
    else [part, at] = [star + 1, ++from]
  }
  return parts.slice(part).every((each) => each === "*")
}

/** What each place of a pattern takes: any number of letters, or one of which it says whether. */
function partsOf(pattern) {
  const parts = []
  for (let at = 0; at < pattern.length; at += 1) {
    const letter = pattern[at]
    const end = letter === "[" ? endOfSet(pattern, at) : -1
    if (end > 0) parts.push(setOf(pattern.slice(at + 1, end)))
    else parts.push(letter === "*" ? "*" : (other) => letter === "?" || other === letter)
    if (end > 0) at = end
  }
  return parts
}

/** Where a set ends: a ] that comes first in it is one of its letters. */
function endOfSet(pattern, start) {
  const first = start + (pattern[start + 1] === "!" ? 2 : 1)
  return pattern.indexOf("]", pattern[first] === "]" ? first + 1 : first)
}

function setOf(letters) {
  const isNegative = letters[0] === "!"
  const members = isNegative ? letters.slice(1) : letters
  const ranges = []
  for (let at = 0; at < members.length; at += 1) {
    const isRange = members[at + 1] === "-" && at + 2 < members.length
    ranges.push([members[at], members[isRange ? at + 2 : at]].map((letter) => letter.codePointAt(0)))
    if (isRange) at += 2
  }
  return (letter) => ranges.some(([low, high]) => low <= letter.codePointAt(0) && letter.codePointAt(0) <= high) !== isNegative
}
