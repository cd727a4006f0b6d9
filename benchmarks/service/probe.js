// Injected before the page's own scripts: records the times of events by the page's clock.
;(() => {
  const seen = { waiting: 0, drawn_ms: 0, clicked_ms: 0, event_ms: 0, shift: 0, moved: {}, longest_task_ms: 0 }
  window.paceline_probe = seen

  const named = (node) => {
    const place = node?.closest?.("section") ?? node?.parentElement?.closest("section")
    const own = node?.className?.baseVal ?? node?.className ?? node?.nodeName
    return `${place?.ariaLabel ?? place?.className ?? "page"}: ${own}`
  }

  const { fetch } = window
  window.fetch = async (...asked) => {
    seen.waiting += 1
    try {
      return await fetch(...asked)
    } finally {
      seen.waiting -= 1
    }
  }

  // Two frames on, what was drawn is on the screen.
  const now = (name) => () => {
    seen[name] = performance.now()
  }
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(now("drawn_ms")))
  let plotly = null
  Object.defineProperty(window, "Plotly", {
    configurable: true,
    get: () => plotly,
    set: (value) => {
      const { react } = value
      value.react = async (...asked) => {
        const plot = await react(...asked)
        drawn()
        return plot
      }
      plotly = value
    },
  })

  const { EventSource } = window
  window.EventSource = class extends EventSource {
    constructor(...asked) {
      super(...asked)
      this.addEventListener("window", now("event_ms"))
    }
  }

  addEventListener("click", now("clicked_ms"), { capture: true })
  new PerformanceObserver((list) => {
    for (const { hadRecentInput, value, sources } of list.getEntries()) {
      if (hadRecentInput) continue
      seen.shift += value
      for (const { node, previousRect, currentRect } of sources) {
        const down_px = Math.abs(currentRect.y - previousRect.y)
        seen.moved[named(node)] = Math.max(seen.moved[named(node)] ?? 0, down_px)
      }
    }
  }).observe({ type: "layout-shift", buffered: true })
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) seen.longest_task_ms = Math.max(seen.longest_task_ms, each.duration)
  }).observe({ type: "longtask", buffered: true })
})()
