/** All pages by their address. Each is loaded when it is first shown, or when the browser has nothing to do. */

const PAGES = [
  { path: /^\/$/, title: "Fleet", load: () => import("./fleet/page.js") },
  { path: /^\/jobs\/(?<jobId>[^/]+)$/, title: "Job", load: () => import("./job/page.js") },
  {
    path: /^\/jobs\/(?<jobId>[^/]+)\/workers\/(?<dpRank>\d+)-(?<stage>\d+)$/,
    title: "Worker",
    load: () => import("./worker/page.js"),
  },
  { path: /^\/jobs\/(?<jobId>[^/]+)\/timeline$/, title: "Timeline", load: () => import("./timeline/page.js") },
  { path: /^\/jobs\/(?<jobId>[^/]+)\/what-if$/, title: "What if", load: () => import("./what-if/page.js") },
  { path: /^\/hosts$/, title: "Hosts", load: () => import("./hosts/page.js") },
  { path: /^\/hosts\/(?<host>[^/]+)$/, title: "Host", load: () => import("./host/page.js") },
  { path: /^\/alerts$/, title: "Alerts", load: () => import("./alerts/page.js") },
  { path: /^\/alerts\/rules$/, title: "Alert rules", load: () => import("./rules/page.js") },
  { path: /^\/alerts\/receivers$/, title: "Receivers", load: () => import("./receivers/page.js") },
  { path: /^\/settings\/audit$/, title: "Audit", load: () => import("./audit/page.js") },
  { path: /^\/settings$/, title: "Settings", load: () => import("./settings/page.js") },
  { path: /^\/status$/, title: "Status", load: () => import("./status/page.js") },
  { path: /^\/compare$/, title: "Compare", load: () => import("./compare/page.js") },
]
const NOWHERE = { title: "No such page", load: () => import("./not-found/page.js") }

/** The page of an address, and the parameters in it. */
export function pageOf(path) {
  for (const page of PAGES) {
    const found = page.path.exec(path)
    if (found) return { page, params: found.groups ?? {} }
  }
  return { page: NOWHERE, params: {} }
}

/** Load all other pages: a click waits for no script, and works while the server is away. */
export function loadAllPages() {
  for (const { load } of [...PAGES, NOWHERE]) load().catch(() => {})
}
