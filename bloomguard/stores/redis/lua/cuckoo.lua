-- Changes one shard of a cuckoo filter exactly as bloomguard.filters.cuckoo does: the bytes are the same.
--
-- KEYS: the shard, its journal; for "join" also the key of the transferred body
-- ARGV: "add", "add once", "discard" or "join"; the 8 bytes of the tag; offsets of the last tag and of the body; size
--       of the body; bits of a fingerprint; number of buckets; offset and size of each partition of the spill, u32
--       little-endian each; then for each key its fingerprint, its bucket and the positions of its three recent bits,
--       or for "join" the arguments described below
-- Returns -1 if the shard's tags are wrong, else the number of keys processed.

local op, tag, tail, body, size = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local bits, buckets, spill = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local FIRST, EACH = 9, 5 -- the first key's first argument, and the number of arguments of a key
local MOST_BUCKETS, MOST_BUCKETS_FULL = 500, 50 -- buckets to search for a free slot, before and after the first spill
local HEAD = 64
local SPILLED = 2147483648 -- bit of the body's first word: a key has spilled; the other bits count moves
local width = bits / 8
local one = '<I' .. width
local four = '<' .. string.rep('I' .. width, 4)
local factor = 0x7F4A7C15 % buckets
local key = KEYS[1]

-- Lua numbers are doubles: exact here, with at most 2^24 buckets and 2^28 bits in a partition of the spill.
local function other(fingerprint, bucket)
  return ((fingerprint % buckets) * factor - bucket) % buckets
end

local function offset(bucket, slot)
  return body + HEAD + (4 * bucket + slot - 1) * width
end

local function slots_of(bucket)
  local at = offset(bucket, 1)
  local slots = {struct.unpack(four, redis.call('GETRANGE', key, at, at + 4 * width - 1))}
  slots[5] = nil -- struct.unpack also returns the position after the last byte read
  return slots
end

local function find(slots, fingerprint)
  for slot = 1, 4 do
    if slots[slot] == fingerprint then return slot end
  end
end

local function put(bucket, slot, fingerprint)
  redis.call('SETRANGE', key, offset(bucket, slot), struct.pack(one, fingerprint))
end

local function word()
  return (struct.unpack('<I4', redis.call('GETRANGE', key, body, body + 3)))
end

local function count_move(spilled)
  local moves = word()
  if moves >= SPILLED then
    moves, spilled = moves - SPILLED, true
  end
  redis.call('SETRANGE', key, body, struct.pack('<I4', (moves + 1) % SPILLED + (spilled and SPILLED or 0)))
end

-- The bits that a fingerprint and its bucket pair have in the spill: the remainders of fingerprint * buckets + the
-- lesser bucket.
local function spill_bits(fingerprint, first, second)
  local found = {}
  for at = 1, #spill, 8 do
    local offset, size = struct.unpack('<I4I4', spill, at)
    local place = ((fingerprint % size) * (buckets % size) + math.min(first, second)) % size
    found[#found + 1] = 8 * (body + offset) + place
  end
  return found
end

local function has_spilled(fingerprint, first, second)
  if word() < SPILLED then return false end
  for _, bit in ipairs(spill_bits(fingerprint, first, second)) do
    if redis.call('GETBIT', key, bit) == 0 then return false end
  end
  return true
end

local function spill_twins(fingerprint, first, second)
  for _, bit in ipairs(spill_bits(fingerprint, first, second)) do
    redis.call('SETBIT', key, bit, 1)
  end
  count_move(true)
  for _, bucket in ipairs({first, second}) do
    for slot, other in ipairs(slots_of(bucket)) do
      if other == fingerprint then put(bucket, slot, 0) end
    end
  end
end

-- Breadth-first search, so the path is the shortest; each bucket is visited once. The moves start at the free slot:
-- each fingerprint is written to its new slot before its old one is overwritten.
local function make_room(fingerprint, first, second)
  local queue = {{bucket = first}, {bucket = second}}
  local seen = {[first] = true, [second] = true}
  local at, most = 1, word() < SPILLED and MOST_BUCKETS or MOST_BUCKETS_FULL
  while at <= #queue and #queue < most do
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
  if has_spilled(fingerprint, first, second) then return end
  for _, bucket in ipairs({first, second}) do
    local free = find(slots_of(bucket), 0)
    if free then
      put(bucket, free, fingerprint)
      return
    end
  end
  if not make_room(fingerprint, first, second) then spill_twins(fingerprint, first, second) end
end

local function is_in_table(fingerprint, first)
  return find(slots_of(first), fingerprint) or find(slots_of(other(fingerprint, first)), fingerprint)
end

local function discard(fingerprint, first)
  for _, bucket in ipairs({first, other(fingerprint, first)}) do
    local slot = find(slots_of(bucket), fingerprint)
    if slot then
      count_move()
      put(bucket, slot, 0)
      return
    end
  end
end

local function is_whole()
  return redis.call('GETRANGE', key, 8, 15) == tag and redis.call('GETRANGE', key, tail, tail + 7) == tag
end

if not is_whole() then return -1 end

if op == 'join' then
  -- ARGV: the header, the trailer, the number of journal entries that the transferred body contains.
  -- Adds the other entries to the body, then replaces the shard with it; both tags are written last.
  local header, trailer, known = ARGV[FIRST], ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
  local journal, gathered = KEYS[2], KEYS[3]
  if redis.call('LLEN', journal) < known or redis.call('STRLEN', gathered) ~= body + size then return -1 end
  key = gathered
  for _, entry in ipairs(redis.call('LRANGE', journal, known, -1)) do
    local fingerprint, first = struct.unpack('<I4I4', entry)
    add(fingerprint, first)
  end
  redis.call('APPEND', gathered, redis.call('GETRANGE', KEYS[1], body + size, tail + 7 - #trailer)) -- recent bits
  redis.call('APPEND', gathered, trailer)
  redis.call('SETRANGE', gathered, 0, header)
  redis.call('UNLINK', KEYS[1], journal)
  redis.call('RENAME', gathered, KEYS[1])
  return 1
end

for at = FIRST, #ARGV, EACH do
  local fingerprint, first = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if op == 'discard' then
    discard(fingerprint, first)
  else
    for bit = at + 2, at + EACH - 1 do
      redis.call('SETBIT', key, ARGV[bit], 1) -- also makes a replica refuse the script when nothing else is written
    end
    -- The journal exists only during a build. It also gets a key that only seems to have spilled: the end of the build
    -- replaces the shard and its spill, but all that is in the table is in the journal.
    if op == 'add' or not is_in_table(fingerprint, first) then
      redis.call('RPUSHX', KEYS[2], struct.pack('<I4I4', fingerprint, first))
      add(fingerprint, first)
    end
  end
end
return (#ARGV - FIRST + 1) / EACH
