// Written by `casfs attach opencode`, deleted by `casfs detach opencode`.
// It reports each event to the hook program of the store, in the form of Claude Code's hooks.
// Synchronous: what is not finished when opencode ends would be lost. It never throws.
import { spawnSync } from "node:child_process"

const COMMAND = "@COMMAND@"

const texts = {} // by message: the parts of an answer
const answer = {} // by session: the last message of the model
const open = new Set() // calls that have begun
const parent = {} // by the session of a subagent: the session that called it

// What a subagent does is of the session of its person, as with other agents.
const root = (session) => (session in parent ? root(parent[session]) : session)

const report = (name, session, directory, more) => {
  try {
    const input = JSON.stringify({ hook_event_name: name, session_id: session, cwd: directory, ...more })
    spawnSync("/bin/sh", ["-c", COMMAND], { input, timeout: 10000, stdio: ["pipe", "ignore", "ignore"] })
  } catch {}
}

const tool = (input, args) => ({ tool_name: input.tool, tool_input: args, tool_use_id: input.callID })

export const Casfs = async ({ directory }) => ({
  "chat.message": async (input, output) => {
    const prompt = output.parts.filter((part) => part.type === "text").map((part) => part.text).join("\n")
    if (input.sessionID in parent) return
    report("UserPromptSubmit", input.sessionID, directory, { prompt, prompt_id: output.message?.id })
  },
  "tool.execute.before": async (input, output) => {
    open.add(input.callID)
    report("PreToolUse", root(input.sessionID), directory, tool(input, output.args))
  },
  "tool.execute.after": async (input, output) => {
    open.delete(input.callID)
    report("PostToolUse", root(input.sessionID), directory, { ...tool(input, input.args), tool_response: output.output })
  },
  event: async ({ event }) => {
    const properties = event.properties
    const info = properties.info
    if (event.type === "session.created" && info?.parentID) parent[info.id] = info.parentID
    else if (event.type === "session.created")
      report("SessionStart", info?.id, directory, { source: "startup" })
    // Of a call that was refused, or has failed, nothing else tells.
    const part = event.type === "message.part.updated" ? properties.part : undefined
    if (part?.type === "tool" && part.state?.status === "error" && open.delete(part.callID))
      report("PostToolUseFailure", root(part.sessionID), directory, {
        ...tool(part, part.state.input),
        error: part.state.error,
      })
    if (part?.type === "text") {
      texts[part.messageID] = { ...texts[part.messageID], [part.id]: part.text }
      answer[part.sessionID] = part.messageID
    }
    if (event.type === "session.idle" && !(properties.sessionID in parent)) {
      const parts = texts[answer[properties.sessionID]] ?? {}
      const said = Object.values(parts).join("\n")
      report("Stop", properties.sessionID, directory, { last_assistant_message: said })
      delete texts[answer[properties.sessionID]]
    }
  },
})
