-- Shared by the sessions: what was seen goes to $SEEN as JSON, and waits are for states.
local M = { seen = { messages = {} } }
local deadline_ms = tonumber(vim.env.DEADLINE_MS)

vim.notify = function(message)
  table.insert(M.seen.messages, message)
end

local function finish(problem)
  M.seen.problem = problem
  local file = io.open(vim.env.SEEN, "w")
  file:write((vim.json or { encode = vim.fn.json_encode }).encode(M.seen))
  file:close()
  for _, client in ipairs(require("kernel_lsp").clients()) do
    vim.lsp.stop_client(client.id)
  end
  vim.wait(3000, function()
    return #require("kernel_lsp").clients() == 0
  end, 50)
  vim.cmd("qall!")
end

function M.until_holds(what, holds)
  if not vim.wait(deadline_ms, holds, 50) then
    error("not in time: " .. what .. "; jobs: " .. vim.inspect(require("kernel_lsp.jobs").list()))
  end
end

function M.text_of(path)
  local file = io.open(path, "rb")
  if file == nil then
    return ""
  end
  local text = file:read("*a")
  file:close()
  return text
end

function M.lines()
  return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\n")
end

--- The runs under way, without checks and estimates.
function M.runs()
  return vim.tbl_filter(function(job)
    return job.kind == "optimize" or job.kind == "resume"
  end, require("kernel_lsp.jobs").list())
end

function M.start()
  if vim.env.WAY == "enable" then
    vim.lsp.enable("kernel_lsp") -- lsp/kernel_lsp.lua alone, with the settings of the pyproject.toml
  else
    require("kernel_lsp").setup({
      cmd = { vim.env.PYTHON, "-m", "kernel_lsp", "serve" },
      trusted = vim.env.TRUSTED == "yes" or nil,
      settings = { device = "cpu", generations = 1, proposals = 2 },
    })
  end
end

function M.edit(path, filetype)
  vim.cmd("edit " .. path)
  vim.cmd("set filetype=" .. filetype)
  M.until_holds("a client", function()
    return #require("kernel_lsp").clients() > 0
  end)
end

function M.review()
  local review = require("kernel_lsp.review")
  M.until_holds("a review", function()
    return review.open ~= nil and review.open.tabs ~= nil
  end)
  return review.open
end

--- Runs the session once the editor is up, and ends the editor.
function M.play(session)
  vim.defer_fn(function()
    local fine, problem = xpcall(session, debug.traceback)
    finish(not fine and problem or nil)
  end, 10)
end

return M
