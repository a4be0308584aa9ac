-- The elements up to a number are written. A run that was replaced may say so late: nothing follows then.
-- KEYS: the elements taken, their state. ARGV: the history, the number.
local state = redis.call('HMGET', KEYS[2], 'history', 'written')
local ended = tonumber(ARGV[2]) - tonumber(state[2] or 0)
if state[1] == ARGV[1] and ended > 0 then
  redis.call('LTRIM', KEYS[1], ended, -1)
  redis.call('HSET', KEYS[2], 'written', ARGV[2])
end
return 0
