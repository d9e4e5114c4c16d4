-- incompatible: keep how the holder of a run is asked to stop

-- Instead of a flag for a pause.
alter table run add column stop text;

update run
set stop = 'pause'
where is_pausing;

alter table run drop column is_pausing;
