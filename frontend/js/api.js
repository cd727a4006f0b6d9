/** The only door to the server: JSON, the session, and live events. */

const BASE = "/api/v1"

// After the browser gives up on the event stream; it retries mere interruptions by itself.
const RETRY_DELAYS_S = [1, 2, 5, 10]

/** A refusal by the server, or no answer at all (`status` 0). */
export class ApiError extends Error {
  constructor(status, detail) {
    super(detail)
    this.status = status
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

/** Whether this browser already has a session. */
export async function isSignedIn() {
  return (await getJson("/session")).authenticated
}

/** Sentences about what a crash could lose here; none where losing is not allowed. */
export async function whatMayBeLost() {
  return (await getJson("/session")).lossy ?? []
}

/** Trade a token for the session cookie. */
export function signIn(token) {
  return request("POST", "/session", { token })
}

/**
 * Listen to the server's events for as long as the page lives.
 *
 * `onEvent(kind, body)` gets "snapshot", "resync", "window", "job" and "alert";
 * `onConnection(isConnected)` each change; `onRefused()` when the session has ended.
 */
export function listen({ onEvent, onConnection, onRefused }) {
  let failures = 0
  const open = () => {
    const source = new EventSource(`${BASE}/events`)
    source.onopen = () => {
      failures = 0
      onConnection(true)
    }
    source.onerror = () => {
      onConnection(false)
      if (source.readyState !== EventSource.CLOSED) return
      source.close()
      again()
    }
    for (const kind of ["snapshot", "resync", "window", "job", "alert"]) {
      source.addEventListener(kind, (event) => onEvent(kind, event.data ? JSON.parse(event.data) : {}))
    }
  }
  const again = () => {
    const delay_s = RETRY_DELAYS_S[Math.min(failures++, RETRY_DELAYS_S.length - 1)]
    setTimeout(async () => {
      const signedIn = await isSignedIn().catch(() => true)
      if (signedIn) open()
      else onRefused()
    }, delay_s * 1000)
  }
  open()
}

async function request(method, path, body) {
  const answer = await fetch(BASE + path, {
    method,
    headers: { Accept: "application/json", ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  }).catch(() => {
    throw new ApiError(0, "The server does not answer.")
  })
  if (answer.status === 204) return null
  const json = await answer.json().catch(() => null)
  if (!answer.ok) throw new ApiError(answer.status, json?.detail ?? answer.statusText)
  return json
}
