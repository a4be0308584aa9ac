-- Begin to take elements: those up to the position are written, and need not stay.
-- In one history numbers of elements mean the same. If the position is not of this one, or is not among
-- the elements that are kept here, it says nothing about them: another history begins, and all of them are read again.
-- KEYS: the elements taken, their state. ARGV: the position's history and number, the history to begin.
local state = redis.call('HMGET', KEYS[2], 'history', 'written')
local written = tonumber(state[2] or 0)
local number = tonumber(ARGV[2])
if state[1] == ARGV[1] and number >= written and number <= written + redis.call('LLEN', KEYS[1]) then
  if number > written then
    redis.call('LTRIM', KEYS[1], number - written, -1)
    redis.call('HSET', KEYS[2], 'written', number)
  end
  return { ARGV[1], number }
end
redis.call('HSET', KEYS[2], 'history', ARGV[3], 'written', 0)
return { ARGV[3], 0 }
