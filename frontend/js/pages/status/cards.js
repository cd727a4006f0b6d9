/** The cards of the status page: each part with what it is doing. */

import { receiverState } from "../../components/alerts/receiver-words.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { ago, capitalized, clock, contained, counted, duration, seconds, whole } from "../../lib/formatting.js"
import { bytes } from "./stats.js"

/** All cards. */
export function partsOf(status) {
  return h(
    "div",
    { class: "status-parts", "data-key": "parts" },
    consumersCard(status.consumers, status.queue),
    canaryCard(status.canary),
    checksCard(status.checks),
    queueCard(status.queue, status.outbox),
    heartbeatsCard(status.heartbeats),
  )
}

function card(key, title, explanation, ...content) {
  return h(
    "section",
    { class: "card", "data-key": key, "aria-label": title },
    h("header", {}, h("h2", {}, title), explanation && h("span", { class: "explanation" }, explanation)),
    ...content,
  )
}

const unknown = () => h("p", { class: "quiet" }, "Not known while the database does not answer.")

function facts(rows) {
  return h(
    "dl",
    { class: "in-force" },
    rows.filter(Boolean).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", { class: "number" }, value))),
  )
}

function consumersCard(consumers, queue) {
  if (consumers === null) return card("consumers", "Consumers", "", unknown())
  const told = consumers.told_at
    ? `Receivers were told at ${clock(new Date(consumers.told_at))} that no consumer works.`
    : consumers.dead_after_s
      ? `Receivers are told after ${duration(consumers.dead_after_s)} without a turn.`
      : "Receivers are not told when consumers are dead: PACELINE_CONSUMERS_DEAD_AFTER_S is 0."
  return card(
    "consumers",
    "Consumers",
    queue && counted(queue.shards, "part").concat(" of the queue"),
    consumers.items.length
      ? h("ul", { class: "status-rows" }, consumers.items.map(consumerRow))
      : h("p", { class: "quiet" }, "None has run within the last hour: start one with paceline consumer."),
    h("p", { class: "remark" }, told),
  )
}

function consumerRow({ name, is_alive, last_turn_at, shards }) {
  const works = shards.length
    ? `works on ${shards.length === 1 ? "part" : "parts"} ${shards.join(", ")}`
    : "works on no part of the queue"
  const turned = last_turn_at ? `last turn ${ago(new Date(last_turn_at))}` : "no turn yet"
  return h(
    "li",
    { "data-key": name },
    h("span", { class: "state" }, stateIcon(is_alive ? "healthy" : "stalled"), is_alive ? "Alive" : "Dead"),
    h("div", {}, h("b", {}, contained(name)), h("small", {}, `${capitalized(works)}, ${turned}.`)),
  )
}

const CANARY = {
  off: ["not-analysed", "Off"],
  waiting: ["silent", "Not tried yet"],
  found: ["healthy", "Found"],
  missing: ["warning", "Missing"],
}

function canaryCard(canary) {
  if (canary === null) return card("canary", "Canary", "", unknown())
  const [mark, word] = CANARY[canary.state]
  const told = canary.told_at && `Receivers were told at ${clock(new Date(canary.told_at))}.`
  return card(
    "canary",
    "Canary",
    "a job with a known straggler, pushed through all parts",
    h("span", { class: "state" }, stateIcon(mark), word),
    canary.detail && h("p", {}, `Last round: ${contained(canary.detail)}.`),
    canary.state !== "off" &&
      facts([
        ["Last found", canary.found_at ? ago(new Date(Date.now() - 1000 * canary.age_s)) : "not yet"],
        canary.took_s !== null && ["From push to finding", seconds(canary.took_s)],
        ["A round every", duration(canary.every_s)],
        ["Receivers are told after", duration(canary.missing_after_s)],
      ]),
    told && h("p", { class: "remark" }, told),
  )
}

const CHECKS = {
  queue: "Queue",
  room: "Room in the queue",
  store: "Database",
  consumers: "Consumers",
  shards: "Parts of the queue",
  backlog: "Backlog",
  disk: "Disk",
  durability: "Durability",
}

function checksCard(checks) {
  return card(
    "checks",
    "Checks",
    "as /readyz has them",
    h(
      "ul",
      { class: "status-rows" },
      Object.entries(checks).map(([name, { ok, sentence }]) =>
        h(
          "li",
          { "data-key": name },
          h("span", { class: "state" }, stateIcon(ok ? "healthy" : "warning"), ok ? "OK" : "Failed"),
          h("div", {}, h("b", {}, CHECKS[name] ?? capitalized(name)), h("small", {}, capitalized(sentence), ".")),
        ),
      ),
    ),
  )
}

function queueCard(queue, outbox) {
  const outboxRows = outbox && [
    ["Messages to send", whole(outbox.due)],
    outbox.oldest_s !== null && ["The oldest of them waits for", duration(Math.round(outbox.oldest_s))],
  ]
  if (queue === null)
    return card(
      "queue",
      "Queue and outbox",
      "",
      h("p", { class: "quiet" }, "The queue does not answer."),
      outboxRows && facts(outboxRows),
    )
  const limit = queue.memory_limit_bytes ? ` of ${bytes(queue.memory_limit_bytes)}` : ""
  return card(
    "queue",
    "Queue and outbox",
    "",
    facts([
      ["Batches waiting or worked on", whole(queue.entries)],
      queue.oldest_s !== null && ["The oldest waits for", duration(Math.round(queue.oldest_s))],
      ["Memory", queue.memory_bytes === null ? "not measured" : `${bytes(queue.memory_bytes)}${limit}`],
      ["Full parts", `${whole(queue.full_shards)} of ${whole(queue.shards)}`],
      queue.unheld_shards !== null && ["Parts without a consumer", whole(queue.unheld_shards)],
      ...(outboxRows ?? []),
    ]),
  )
}

function heartbeatsCard(heartbeats) {
  if (heartbeats === null) return card("heartbeats", "Dead-man's switches", "", unknown())
  return card(
    "heartbeats",
    "Dead-man's switches",
    "receivers that get heartbeats while all of this works",
    heartbeats.length
      ? h("ul", { class: "status-rows" }, heartbeats.map(heartbeatRow))
      : h(
          "p",
          {},
          "None: if the whole service stops, nobody is told. Add one on the page of ",
          h("a", { href: "/alerts/receivers" }, "receivers"),
          ".",
        ),
  )
}

function heartbeatRow({ receiver_id, name, every_s, state, delivered_at }) {
  const [mark, word] = receiverState({ health: { state } })
  const last = delivered_at ? `the last was delivered ${ago(new Date(delivered_at))}` : "none is delivered yet"
  return h(
    "li",
    { "data-key": receiver_id },
    h("span", { class: "state" }, stateIcon(mark), word),
    h("div", {}, h("b", {}, contained(name)), h("small", {}, `A heartbeat every ${duration(every_s)}; ${last}.`)),
  )
}
