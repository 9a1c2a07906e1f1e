-- Changes one shard of a cuckoo filter as bloomguard.filters.cuckoo does, to the same bytes.
--
-- KEYS: the shard, its journal; to join also the key of the body that was gathered for it
-- ARGV: "add", "discard" or "join", both tags' bytes, offsets of the last tag and of the body, bits of a fingerprint,
--       number of buckets; then fingerprint and bucket of each key, or to join: see below
-- Returns -1 if the tags are not those, else how many keys were dealt with: fewer than given if no room can be made.

local op, tag, tail, body = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bits, buckets = tonumber(ARGV[5]), tonumber(ARGV[6])
local MOST_BUCKETS = 2000 -- looked at in search of a free slot
local HEAD = 64
local width = bits / 8
local one = '<I' .. width
local four = '<' .. string.rep('I' .. width, 4)
local factor = 0x7F4A7C15 % buckets
local key = KEYS[1]

-- Numbers are doubles: exact, since there are at most 2^26 buckets.
local function other(fingerprint, bucket)
  return ((fingerprint % buckets) * factor - bucket) % buckets
end

local function offset(bucket, slot)
  return body + HEAD + (4 * bucket + slot - 1) * width
end

local function slots_of(bucket)
  local at = offset(bucket, 1)
  return {struct.unpack(four, redis.call('GETRANGE', key, at, at + 4 * width - 1))}
end

local function find(slots, fingerprint)
  for slot = 1, 4 do
    if slots[slot] == fingerprint then return slot end
  end
end

local function put(bucket, slot, fingerprint)
  redis.call('SETRANGE', key, offset(bucket, slot), struct.pack(one, fingerprint))
end

local function count_move()
  local moves = struct.unpack('<I4', redis.call('GETRANGE', key, body, body + 3))
  redis.call('SETRANGE', key, body, struct.pack('<I4', (moves + 1) % 4294967296))
end

local function saturated(fingerprint, here, there)
  for slot = 1, 4 do
    if here[slot] ~= fingerprint or there[slot] ~= fingerprint then return false end
  end
  return true
end

-- Breadth first, so the path is the shortest; no bucket comes twice. From the free slot it is walked backwards: each
-- fingerprint is in its new slot before the old one is overwritten.
local function make_room(fingerprint, first, second)
  local queue = {{bucket = first}, {bucket = second}}
  local seen = {[first] = true, [second] = true}
  local at = 1
  while at <= #queue and at <= MOST_BUCKETS do
    local from = queue[at]
    local slots = slots_of(from.bucket)
    for slot = 1, 4 do
      local bucket = other(slots[slot], from.bucket)
      if not seen[bucket] then
        seen[bucket] = true
        local step = {bucket = bucket, from = from, slot = slot, moved = slots[slot]}
        queue[#queue + 1] = step
        local free = find(slots_of(bucket), 0)
        if free then
          while step.from do
            put(step.bucket, free, step.moved)
            count_move()
            free, step = step.slot, step.from
          end
          put(step.bucket, free, fingerprint)
          return true
        end
      end
    end
    at = at + 1
  end
  return false
end

local function add(fingerprint, first)
  local second = other(fingerprint, first)
  local here, there = slots_of(first), slots_of(second)
  local free = find(here, 0)
  if free then
    put(first, free, fingerprint)
    return true
  end
  free = find(there, 0)
  if free then
    put(second, free, fingerprint)
    return true
  end
  return saturated(fingerprint, here, there) or make_room(fingerprint, first, second)
end

local function discard(fingerprint, first)
  local second = other(fingerprint, first)
  local here, there = slots_of(first), slots_of(second)
  if saturated(fingerprint, here, there) then return true end
  local slot = find(here, fingerprint)
  if slot then
    count_move()
    put(first, slot, 0)
    return true
  end
  slot = find(there, fingerprint)
  if slot then
    count_move()
    put(second, slot, 0)
  end
  return true
end

local function is_whole()
  return redis.call('GETRANGE', key, 8, 15) == tag and redis.call('GETRANGE', key, tail, tail + 7) == tag
end

if not is_whole() then return -1 end

if op == 'join' then
  -- ARGV: the header, the trailer, how many entries of the journal the gathered body has already.
  -- It takes the shard's place with what others have added since; both tags are written last.
  local header, trailer, known = ARGV[7], ARGV[8], tonumber(ARGV[9])
  local journal, gathered = KEYS[2], KEYS[3]
  if redis.call('LLEN', journal) < known or redis.call('STRLEN', gathered) ~= tail + 8 - #trailer then return -1 end
  key = gathered
  for _, entry in ipairs(redis.call('LRANGE', journal, known, -1)) do
    local fingerprint, first = struct.unpack('<I4I4', entry)
    if not add(fingerprint, first) then return 0 end
  end
  redis.call('APPEND', gathered, trailer)
  redis.call('SETRANGE', gathered, 0, header)
  redis.call('UNLINK', KEYS[1], journal)
  redis.call('RENAME', gathered, KEYS[1])
  return 1
end

local change = op == 'add' and add or discard
for at = 7, #ARGV, 2 do
  local fingerprint, first = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if op == 'add' then
    -- While it is being built; and a replica refuses it, also where nothing else would be written.
    redis.call('RPUSHX', KEYS[2], struct.pack('<I4I4', fingerprint, first))
  end
  if not change(fingerprint, first) then return (at - 7) / 2 end
end
return (#ARGV - 6) / 2
