/** Requests to the server: JSON, files and the session; for its events see events.js. */

export const BASE = "/api/v1"

// What a proxy answers in the place of a server that does not.
const NOT_REACHED = new Set([502, 504])
const reachListeners = new Set()

/** Call `listener(isReached)` after each request: whether the server answered it. */
export function onReach(listener) {
  reachListeners.add(listener)
}

function report(isReached) {
  for (const listener of reachListeners) listener(isReached)
}

/** A refusal by the server, or no answer at all (`status` 0); `problem` is its body, where it has one. */
class ApiError extends Error {
  constructor(status, detail, problem = null) {
    super(detail)
    this.status = status
    this.problem = problem
    this.at = new Date()
  }
}

/** The JSON at a path under /api/v1. */
export function getJson(path) {
  return request("GET", path)
}

/** The JSON at a path, or null where there is nothing (404). */
export async function getJsonOrNull(path) {
  try {
    return await getJson(path)
  } catch (error) {
    if (error.status === 404) return null
    throw error
  }
}

/** Change something: "POST", "PUT", "PATCH" or "DELETE" at a path; returns the answer's JSON. */
export function send(method, path, body, headers = {}) {
  return request(method, path, body, headers)
}

/** Send a text with these headers; returns the answer's JSON. */
export function sendText(method, path, text, headers) {
  return answered(path, { method, headers: { Accept: "application/json", ...headers }, body: text })
}

/** The bytes of a file at a path. */
export async function getBytes(path) {
  const answer = await reach(path, { headers: { Accept: "*/*" } })
  if (!answer.ok) throw await refusal(answer)
  return answer.arrayBuffer()
}

/** Every item of a list that comes in cursor pages, up to `most`. */
export async function getAll(path, most = 1000) {
  const items = []
  let cursor = null
  do {
    const query = new URLSearchParams({ limit: "100", ...(cursor && { cursor }) })
    const page = await getJson(`${path}?${query}`)
    items.push(...page.items)
    cursor = page.next_cursor
  } while (cursor && items.length < most)
  return items
}

/** What the server says of this browser's session: `authenticated`, `scopes`, `lossy`, `disk`, `price`. */
export function getSession() {
  return getJson("/session")
}

/** Whether this browser already has a session. */
export async function isSignedIn() {
  return (await getSession()).authenticated
}

/** Trade a token for the session cookie. */
export function signIn(token) {
  return request("POST", "/session", { token })
}

function request(method, path, body, headers = {}) {
  return answered(path, {
    method,
    headers: { Accept: "application/json", ...(body && { "Content-Type": "application/json" }), ...headers },
    body: body && JSON.stringify(body),
  })
}

async function answered(path, options) {
  const answer = await reach(path, options)
  if (!answer.ok) throw await refusal(answer)
  return answer.status === 204 ? null : answer.json().catch(() => null)
}

async function reach(path, options) {
  const answer = await fetch(BASE + path, options).catch(() => null)
  const isReached = answer !== null && !NOT_REACHED.has(answer.status)
  report(isReached)
  if (!isReached) throw new ApiError(0, "The server does not answer.")
  return answer
}

async function refusal(answer) {
  const problem = await answer.json().catch(() => null)
  return new ApiError(answer.status, problem?.detail ?? answer.statusText, problem)
}
