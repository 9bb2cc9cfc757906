-- A session as a user has it, through vim.lsp alone and without any plugin. Works from Neovim 0.7 on.
-- What was seen goes as JSON into $SEEN; each step waits for what a person would wait for.

local seen = {}
local deadline_ms = tonumber(vim.env.DEADLINE_MS)

local function wait(what, holds)
  if not vim.wait(deadline_ms, holds, 50) then
    error('nothing within the deadline: ' .. what)
  end
end

local function text_of(buffer)
  return table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, true), '\n')
end

local quick = { kernelLsp = { device = 'cpu', generations = 1, proposals = 2 } }
local long = { kernelLsp = { device = 'cpu', generations = 50, proposals = 8 } }

local progress = {}
local default_progress = vim.lsp.handlers['$/progress']
vim.lsp.handlers['$/progress'] = function(err, result, context, config)
  table.insert(progress, { token = result.token, value = result.value })
  return default_progress(err, result, context, config)
end

-- Choose a code action by the start of its title, as a person does in the menu.
local wanted
vim.ui.select = function(items, options, on_choice)
  local titles = {}
  for _, item in ipairs(items) do
    local title = options.format_item and options.format_item(item) or tostring(item)
    table.insert(titles, title)
    if vim.startswith(title, wanted) then
      seen.titles = titles
      on_choice(item, 1)
      return
    end
  end
  error('no action ' .. wanted .. ' in ' .. vim.inspect(titles))
end

-- A person without an answer closes the prompt. A headless Neovim would wait for keys.
vim.lsp.handlers['window/showMessageRequest'] = function()
  return vim.NIL
end

-- Neovim 0.12 asks before it makes edits. A person who reviews the new files first leaves the calls as they are.
local confirm = vim.fn.confirm
vim.fn.confirm = function(message, ...)
  return message:find('call site', 1, true) and 2 or confirm(message, ...)
end

local function act(line, title)
  wanted = title
  vim.api.nvim_win_set_cursor(0, { line, 0 })
  vim.lsp.buf.code_action()
end

local function ended(first)
  for index = first, #progress do
    if progress[index].value.kind == 'end' then
      return progress[index].value.message
    end
  end
end

local function run()
  vim.cmd('edit ' .. vim.fn.fnameescape(vim.env.FILE))
  vim.bo.filetype = 'python'
  local buffer = vim.api.nvim_get_current_buf()
  local id = vim.lsp.start_client({
    name = 'kernel-lsp',
    cmd = { vim.env.PYTHON, '-m', 'kernel_lsp', 'serve' },
    root_dir = vim.fn.fnamemodify(vim.env.FILE, ':h'),
    init_options = { trusted = true, settings = quick.kernelLsp }, -- 0.7 does not answer workspace/configuration
    settings = quick,
  })
  vim.lsp.buf_attach_client(buffer, id)
  local client = vim.lsp.get_client_by_id(id)

  wait('diagnostics', function() return #vim.diagnostic.get(buffer) > 0 end)
  seen.diagnostics = {}
  for _, found in ipairs(vim.diagnostic.get(buffer)) do
    table.insert(seen.diagnostics, { code = found.code, source = found.source, line = found.lnum })
  end

  act(tonumber(vim.env.NET_LINE), 'Add shapes')
  wait('the edit of a code action', function() return vim.bo[buffer].modified and ended(1) ~= nil end)
  seen.with_shapes = text_of(buffer)
  vim.cmd('silent write')
  for index = #progress, 1, -1 do
    progress[index] = nil -- that of the shapes, which are tried first
  end

  act(tonumber(vim.env.SCALE_LINE), 'Optimize to CUDA: scale')
  wait('progress', function() return #progress > 2 end)
  seen.first_progress = progress[1].value
  wait('the end of the run', function() return ended(1) end)
  local kernel
  wait('the kernel', function()
    kernel = vim.fn.bufnr(vim.fn.fnamemodify(vim.env.FILE, ':h') .. '/kernels/scale.cu')
    return kernel > 0 and text_of(kernel):find('kernel-lsp: 1', 1, true) ~= nil
  end)
  seen.kernel = text_of(kernel)
  seen.progress = vim.deepcopy(progress)

  client.config.settings = long
  client.notify('workspace/didChangeConfiguration', { settings = long })
  local before = #progress
  act(tonumber(vim.env.SCALE_LINE), 'Optimize to CUDA: scale')
  wait('progress of the second run', function()
    local last = progress[#progress]
    return #progress > before and last.value.kind == 'report' and last.value.percentage > 5
  end)
  local started = vim.loop.hrtime()
  client.notify('window/workDoneProgress/cancel', { token = progress[#progress].token })
  wait('the end of the cancelled run', function() return ended(before + 1) end)
  seen.cancelled_s = (vim.loop.hrtime() - started) / 1e9
  seen.cancelled = ended(before + 1)

  client.stop()
  wait('the server to leave', function() return client.is_stopped() end)
end

local ok, problem = pcall(run)
if not ok then
  seen.problem = tostring(problem)
end
seen.messages = vim.api.nvim_exec('messages', true)
local file = io.open(vim.env.SEEN, 'w')
file:write(vim.fn.json_encode(seen))
file:close()
vim.cmd('qall!')
