-- The elements after a number, of those that were taken or are taken now. Only a few are looked at together, so that
-- large ones do not fill the server's memory a second time.
-- KEYS: the elements taken, their state, the list. ARGV: the history, the number, the most elements, the most bytes of all,
-- the most bytes of one, how many bytes to keep of a larger one.
local state = redis.call('HMGET', KEYS[2], 'history', 'written')
if state[1] ~= ARGV[1] then
  return redis.error_reply('FENCED another run takes these elements')
end
local at = tonumber(ARGV[2]) - tonumber(state[2])
local most, left = tonumber(ARGV[3]), tonumber(ARGV[4])
local missing = at + most - redis.call('LLEN', KEYS[1])
while missing > 0 and redis.call('LMOVE', KEYS[3], KEYS[1], 'LEFT', 'RIGHT') do
  missing = missing - 1
end
local elements, sizes = {}, {}
while #elements < most and left > 0 do
  local some = redis.call('LRANGE', KEYS[1], at + #elements, at + math.min(#elements + 64, most) - 1)
  if #some == 0 then
    break
  end
  for _, element in ipairs(some) do
    if left <= 0 then
      break
    end
    sizes[#sizes + 1] = #element
    if #element > tonumber(ARGV[5]) then
      element = string.sub(element, 1, tonumber(ARGV[6]))
    end
    left = left - #element
    elements[#elements + 1] = element
  end
end
return { sizes, elements }
