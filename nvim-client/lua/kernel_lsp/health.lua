-- :checkhealth kernel_lsp
local M = {}

-- Neovim 0.10 renamed the functions.
local health = vim.health or require("health")
local start = health.start or health.report_start
local ok = health.ok or health.report_ok
local warn = health.warn or health.report_warn
local problem = health.error or health.report_error

function M.check()
  start("kernel-lsp")
  local version = vim.version()
  ok(string.format("Neovim %d.%d.%d", version.major, version.minor, version.patch))
  local program = require("kernel_lsp.config").program()
  if vim.fn.executable(program) == 0 then
    problem(program .. " was not found", { "pip install kernel_lsp, or: uv tool install kernel_lsp" })
    return
  end
  local said = vim.trim(vim.fn.system({ program, "--version" }))
  ok(vim.fn.exepath(program) .. ": " .. said)
  local clients = require("kernel_lsp").clients()
  if #clients == 0 then
    warn("no server runs: open a Python or CUDA file", { 'call require("kernel_lsp").setup()' })
  else
    ok(#clients .. " server" .. (#clients > 1 and "s run" or " runs") .. " for " .. clients[1].config.root_dir)
  end
  ok("`kernel-lsp doctor` in a terminal says what this machine can do")
end

return M
