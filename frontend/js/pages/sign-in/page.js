/** The page for who has no session: a token is traded for one. */

import { signIn } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"

export const title = "Sign in"

/** Draw the form into `root`. */
export function render(root, _params, { onSignedIn }) {
  let refusal = ""
  const submit = async (event) => {
    event.preventDefault()
    const token = root.querySelector("input").value.trim()
    try {
      await signIn(token)
      onSignedIn()
    } catch (error) {
      refusal = error.status === 401 ? "Unknown token." : error.message
      draw()
    }
  }
  const draw = () => patch(root, form(submit, refusal))
  draw()
  root.querySelector("input").focus()
  return () => {}
}

function form(onsubmit, refusal) {
  return h(
    "section",
    { class: "sign-in" },
    h(
      "div",
      { class: "headline" },
      h("h1", {}, "Sign in with a token"),
      h("p", {}, "The command that started Paceline printed one; it begins with pl_."),
    ),
    h(
      "form",
      { class: "card", onsubmit },
      h("label", { for: "token" }, "Token"),
      h("input", {
        class: "field",
        id: "token",
        type: "password",
        autocomplete: "current-password",
        required: true,
        "aria-describedby": "refusal",
      }),
      h("p", { class: "refused", id: "refusal", role: "alert" }, refusal),
      h("button", { class: "button is-primary", type: "submit" }, "Sign in"),
    ),
  )
}
