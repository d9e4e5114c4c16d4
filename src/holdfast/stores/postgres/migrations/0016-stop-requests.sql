-- incompatible: keep how the holder of a run is asked to stop

-- Instead of a flag for a pause.
alter table runs add column stop text;

update runs
set stop = 'pause'
where is_pausing;

alter table runs drop column is_pausing;
