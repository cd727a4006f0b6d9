/** Which step a timeline shows: the one that the address names, or what comes nearest to it. */

import { getJson } from "../api.js"

/**
 * The step `{shown, note}` of a job; `shown` is the API's answer.
 *
 * An address may name a step alone, or a stretch of windows: then the step's own window is looked
 * for. Operations are kept when a window closes, so of an open one the last closed one is shown.
 */
export async function findStep(base, { window, step, dp }) {
  const wanted = isOne(window) ? window : ((await windowOf(base, window, step)) ?? lastOf(window))
  try {
    return { shown: await get(base, wanted, { step, dp }), note: null }
  } catch (error) {
    // A step that is named with its window and is not there is told: nothing else was meant.
    if (error.status !== 409 || wanted === "latest") throw error
    const shown = await get(base, "latest", { dp })
    return { shown, note: { fact: `This is step ${shown.step}.`, consequence: error.message } }
  }
}

const isOne = (window) => /^\d+-\d+$/.test(window ?? "")

/** The last window of a stretch. */
const lastOf = (window) => (window?.includes("..") ? window.split("..")[1] : "latest")

async function windowOf(base, window, step) {
  if (step === null) return null
  const query = new URLSearchParams({ first: step, last: step, limit: "1" })
  const epoch = /^(\d+)-/.exec(window ?? "")?.[1]
  if (epoch) query.set("epoch", epoch)
  const { items } = await getJson(`${base}/steps?${query}`)
  return items[0]?.window ?? null
}

function get(base, window, { step = null, dp = null }) {
  const known = Object.entries({ step, dp }).filter(([, value]) => value !== null)
  return getJson(`${base}/windows/${encodeURIComponent(window)}/step?${new URLSearchParams(known)}`)
}
