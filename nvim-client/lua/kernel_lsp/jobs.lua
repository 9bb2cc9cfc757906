-- What `kernelLsp/jobChanged` told: the jobs under way.
local M = { active = {} }

--- Take one notification in; `User KernelLspJob` follows it.
function M.hear(job)
  local is_active = job.state == "queued" or job.state == "running"
  M.active[job.job] = is_active and job or nil
  M.last = job
  vim.api.nvim_exec_autocmds("User", { pattern = "KernelLspJob", modeline = false })
  vim.cmd("redrawstatus")
end

--- The jobs, in the order of their titles.
function M.list()
  local jobs = vim.tbl_values(M.active)
  table.sort(jobs, function(a, b)
    return a.title < b.title
  end)
  return jobs
end

function M.status()
  local jobs = M.list()
  local first = jobs[1]
  if first == nil then
    return ""
  end
  local more = #jobs > 1 and (" (+" .. (#jobs - 1) .. ")") or ""
  if first.state == "queued" then
    return first.title .. " queued" .. more
  end
  return string.format("%s %d%% %s%s", first.title, first.percentage or 0, first.message or "", more)
end

return M
