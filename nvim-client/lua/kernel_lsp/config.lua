-- What the client says of itself to the server, for every version of Neovim.
local M = {}

local ROOT_MARKS = { ".kernel-lsp", "pyproject.toml", ".git" }
M.filetypes = { "python", "cuda" }

--- The program: that of the active environment, else the one on PATH.
function M.program()
  local environment = vim.env.VIRTUAL_ENV
  local inside = environment and (environment .. "/bin/kernel-lsp") or ""
  return vim.fn.executable(inside) == 1 and inside or "kernel-lsp"
end

--- The nearest folder up with one of the marks, else the file's own.
function M.root_of(path)
  local folder = vim.fn.fnamemodify(path, ":p:h")
  for _, mark in ipairs(ROOT_MARKS) do
    for _, find in ipairs({ vim.fn.finddir, vim.fn.findfile }) do
      local found = find(mark, vim.fn.escape(folder, " ,;") .. ";")
      if found ~= "" then
        return vim.fn.fnamemodify((vim.fn.fnamemodify(found, ":p"):gsub("/$", "")), ":h")
      end
    end
  end
  return folder
end

---@class kernel_lsp.Options
---@field cmd? string[] How the server is started; by default `kernel-lsp serve` of the active environment, else of PATH.
---@field trusted? boolean Whether the server may run code without being asked, e.g. to estimate what is hovered over.
---@field settings? kernel_lsp.Settings
---@field on_attach? fun(client: table, buffer: integer)

--- A client's configuration, as `vim.lsp.config` and `vim.lsp.start` take it.
---@param options kernel_lsp.Options
function M.client_config(options)
  local settings = options.settings or {}
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.experimental = { kernelLsp = { jobs = true, terminal = true } }
  capabilities.window = vim.tbl_deep_extend("force", capabilities.window or {}, { showDocument = { support = true } })
  -- Results are reviewed before they are applied (kernel_lsp.review): that is what this capability asks for.
  capabilities.workspace.workspaceEdit = vim.tbl_deep_extend("force", capabilities.workspace.workspaceEdit or {}, {
    documentChanges = true,
    resourceOperations = { "create", "rename", "delete" },
    changeAnnotationSupport = { groupsOnLabel = true },
  })
  return {
    name = "kernel_lsp",
    cmd = options.cmd or { M.program(), "serve" },
    filetypes = M.filetypes,
    root_markers = ROOT_MARKS,
    capabilities = capabilities,
    settings = { kernelLsp = settings },
    init_options = { trusted = options.trusted, settings = settings },
    on_attach = options.on_attach,
    handlers = {
      ["workspace/applyEdit"] = function(...)
        return require("kernel_lsp.review").on_apply_edit(...)
      end,
      ["kernelLsp/jobChanged"] = function(_, job)
        require("kernel_lsp.jobs").hear(job)
      end,
      ["kernelLsp/typeCommand"] = function(_, line)
        require("kernel_lsp.show").command(line)
      end,
      ["window/showDocument"] = function(_, params)
        return require("kernel_lsp.show").document(params)
      end,
    },
  }
end

return M
