/** What the reader's token is good for, so that no page offers what would be refused. */

let scopes = []

/** Take the scopes from the session; until then nothing may be changed. */
export function takeScopes(session) {
  scopes = session.scopes ?? []
}

/** Whether the reader may do what takes this scope: "write" or "admin". */
export const may = (scope) => scopes.includes(scope)
