-- The first entry after an id, and how the stream stands, where both may be too large to be sent.
-- KEYS: the stream. ARGV: the id, the most bytes of an entry, how many bytes to keep of a larger one's values.
local kept = {}
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do
  local name, value = info[at], info[at + 1]
  if name == 'first-entry' then
    value = value and { value[1] } or value
  end
  if name ~= 'last-entry' then
    kept[#kept + 1], kept[#kept + 2] = name, value
  end
end
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
if not found then
  return { kept, 0 }
end
local bytes = 0
for _, text in ipairs(found[2]) do
  bytes = bytes + #text
end
if bytes > tonumber(ARGV[2]) then
  local left = tonumber(ARGV[3])
  local cut = {}
  for at, text in ipairs(found[2]) do
    if left <= 0 then
      break
    end
    cut[at] = string.sub(text, 1, left)
    left = left - #text
  end
  found[2] = cut
end
return { kept, bytes, found }
